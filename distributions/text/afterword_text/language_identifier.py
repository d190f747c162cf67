"""The language identifier: py3langid's, with our languages only and a sorted table instead of its automaton."""

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
    a table of the n-grams, of 1.2 MB.
    """

    __slots__ = ("_features", "_ngrams")

    def __init__(self, *, ngrams: Any, features: Any, weights: Any, priors: Any, languages: Any) -> None:
        """`ngrams` has ascending big-endian numbers, and `features` the feature of each."""
        super().__init__(weights, priors, languages.tolist(), None, None, norm_probs=True, tk_row=())
        self._ngrams: NDArray[np.uint64] = ngrams
        self._features: NDArray[np.int32] = features

    def _raw_score(self, text: bytes) -> Any:
        visits = Counter(self.found(text))
        return self._sparse_score(visits, self.nb_ptc) if visits else np.zeros(len(self.nb_classes), np.float32)

    def found(self, text: bytes) -> list[int]:
        """List the features of the longest n-gram ending at each byte, if there is one."""
        codes = np.frombuffer(text, np.uint8).astype(np.uint64)
        features_at = np.full(len(codes), _NO_FEATURE)
        ngrams = codes
        for _ in range(LONGEST_NGRAM - 1):
            longer = codes.copy()
            longer[1:] |= ngrams[:-1] << _BYTE  # nothing precedes the first n-gram, so it is looked up again
            ngrams = longer
            places = np.searchsorted(self._ngrams, ngrams)
            is_known = self._ngrams.take(places, mode="clip") == ngrams
            np.copyto(features_at, self._features.take(places, mode="clip"), where=is_known)
        features: list[int] = features_at[features_at != _NO_FEATURE].tolist()
        return features
