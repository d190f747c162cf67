"""BM25 as sparse vectors: a document's holds weighted term frequencies, and Qdrant multiplies by IDF at query time.

Score of a document d for a query q, the sum over q's terms t of IDF(t) · tf·(k1+1) / (tf + k1·(1 − b + b·len/avg_len)):
Robertson & Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009).
"""

from collections import Counter
from dataclasses import dataclass

import mmh3

from afterword.streams.language import detect, plausible, stem_words

K1 = 1.2
B = 0.75
"""Robertson and Zaragoza's defaults, and Lucene's."""
AVERAGE_LENGTH = 65
"""Terms; measured on SuperDialseg's dialogues: 65 in ten messages. Fixed, so that a vector never depends on others."""


@dataclass(frozen=True)
class SparseVector:
    """`indices` ascend; `values[i]` is the weight of `indices[i]`."""

    indices: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


def document_vector(text: str, language: str | None = None) -> SparseVector:
    """The vector of a text to index; language: ISO 639-1, detected when None. Empty for a text without terms."""
    frequencies = _frequencies(text, language or detect(text))
    length = frequencies.total()
    return _vector({term: _weight(frequency, length) for term, frequency in frequencies.items()})


def query_vector(text: str) -> SparseVector:
    """The vector of a query: every term once.

    A few words do not identify a language, so they are stemmed in each plausible one; unused stems match no document.
    """
    terms = {term for language in plausible(text) for term in _frequencies(text, language)}
    return _vector(dict.fromkeys(terms, 1.0))


def _frequencies(text: str, language: str) -> Counter[int]:
    return Counter(mmh3.hash(word, signed=False) for word in stem_words(text, language))


def _weight(frequency: int, length: int) -> float:
    return frequency * (K1 + 1) / (frequency + K1 * (1 - B + B * length / AVERAGE_LENGTH))


def _vector(weights: dict[int, float]) -> SparseVector:
    indices = tuple(sorted(weights))
    return SparseVector(indices, tuple(weights[index] for index in indices))
