"""The language identifier: py3langid's, with our languages only and a hash table instead of its automaton."""

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from py3langid.langid import LanguageIdentifier

MODEL = Path(__file__).with_name("language_model") / "model.npz"
"""The library's model with our languages only, made by `tools/language_model.py`."""
LONGEST_NGRAM = 6
"""Bytes of the model's longest n-gram."""
SLOT_BITS = 17
BUCKET_BITS = 15
NO_NGRAM = np.uint64(2**64 - 1)
"""Marks an empty slot; no n-gram has eight bytes."""
_BUCKET_SHIFT = np.uint64(64 - BUCKET_BITS)
_PLACE_SHIFT = np.uint64(64 - BUCKET_BITS - SLOT_BITS)
_LAST_SLOT = np.uint64(2**SLOT_BITS - 1)
_BYTE = np.uint64(8)
_NO_FEATURE = np.int32(-1)


@cache
def identifier() -> "Identifier":
    """Load the prepared model."""
    with np.load(MODEL) as model:
        return Identifier(**model)


class Identifier(LanguageIdentifier):  # type: ignore[misc]
    """Ranks languages as the library does, with features from a table instead of its automaton.

    The library walks an automaton of 45 MB, whose state after a byte gives the longest n-gram that ends there. This is
    a perfect hash table of the n-grams, of 1.6 MB, made by `tools/language_model.py`.
    """

    __slots__ = ("_features", "_multiplier", "_ngrams", "_shifts")

    def __init__(
        self, *, ngrams: Any, features: Any, shifts: Any, multiplier: Any, weights: Any, priors: Any, languages: Any
    ) -> None:
        """`ngrams` and `features` are indexed by slot; an empty slot has NO_NGRAM. `hashed` explains the rest."""
        super().__init__(weights, priors, languages.tolist(), None, None, norm_probs=True, tk_row=())
        self._ngrams: NDArray[np.uint64] = ngrams
        self._features: NDArray[np.int32] = features
        self._shifts: NDArray[np.uint16] = shifts
        self._multiplier = np.uint64(multiplier)

    def _raw_score(self, text: bytes) -> Any:
        visits = Counter(self.found(text))
        return self._sparse_score(visits, self.nb_ptc) if visits else np.zeros(len(self.nb_classes), np.float32)

    def found(self, text: bytes) -> list[int]:
        """List the features of the longest n-gram ending at each byte, if there is one."""
        codes = np.frombuffer(text, np.uint8).astype(np.uint64)
        found = np.full(len(codes), _NO_FEATURE)
        ngrams = codes
        for _ in range(LONGEST_NGRAM - 1):
            longer = codes.copy()
            longer[1:] |= ngrams[:-1] << _BYTE  # nothing precedes the first n-gram, so it is looked up again
            ngrams = longer
            buckets, places = hashed(ngrams, self._multiplier)
            slots = self._shifts.take(buckets) ^ places
            np.copyto(found, self._features.take(slots), where=self._ngrams.take(slots) == ngrams)
        features: list[int] = found[found != _NO_FEATURE].tolist()
        return features


def hashed(ngrams: NDArray[np.uint64], multiplier: np.uint64) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return each n-gram's bucket and place; its slot is the place XOR its bucket's shift."""
    hashes = ngrams * multiplier
    return hashes >> _BUCKET_SHIFT, hashes >> _PLACE_SHIFT & _LAST_SLOT
