"""The language identifier: py3langid's, with our languages only and a hash table instead of its automaton."""

from collections import Counter
from collections.abc import Sequence
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
def identifier() -> Any:
    """Load the library's identifier with our languages only and a table instead of its automaton."""
    with np.load(MODEL) as model:
        table = NGramTable(model["ngrams"], model["features"], model["shifts"], np.uint64(model["multiplier"]))
        return _Identifier(table, model["weights"], model["priors"], model["languages"].tolist())


class _Identifier(LanguageIdentifier):  # type: ignore[misc]
    __slots__ = ("_table",)

    def __init__(self, table: "NGramTable", weights: Any, priors: Any, labels: Sequence[str]) -> None:
        super().__init__(weights, priors, labels, None, None, norm_probs=True, tk_row=())
        self._table = table

    def _raw_score(self, text: bytes) -> Any:
        visits = Counter(self._table.found(text))
        return self._sparse_score(visits, self.nb_ptc) if visits else np.zeros(len(self.nb_classes), np.float32)


class NGramTable:
    """Finds the features of a text, n-grams of two to six bytes, as the library's `visit_counts` does.

    The library walks an automaton of 45 MB, whose state after a byte gives the longest n-gram that ends there. This is
    a perfect hash table of the n-grams, of 1.6 MB, made by `tools/language_model.py`.
    """

    def __init__(
        self, ngrams: NDArray[np.uint64], features: NDArray[np.int32], shifts: NDArray[np.uint16], multiplier: np.uint64
    ) -> None:
        """`ngrams` has numbers by slot, NO_NGRAM in empty ones; `features` is by slot; for the rest see `hashed`."""
        self._ngrams = ngrams
        self._features = features
        self._shifts = shifts
        self._multiplier = multiplier

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
