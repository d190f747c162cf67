"""BM25 as sparse vectors: a document's holds weighted term frequencies, and Qdrant multiplies by IDF at query time.

Score of a document d for a query q, the sum over q's terms t of IDF(t) · tf·(k1+1) / (tf + k1·(1 − b + b·len/avg_len)):
Robertson & Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009).
"""

from dataclasses import dataclass

import numpy as np

from afterword.streams.stores.indexed_texts import END, packed_words
from afterword.streams.stores.search_words import hashed, query_words

K1 = 1.2
B = 0.75
"""Robertson and Zaragoza's defaults, and Lucene's."""
AVERAGE_LENGTH = 130
"""Terms of messages and summary. Fixed, so that a vector never depends on others."""


@dataclass(frozen=True)
class SparseVector:
    """`indices` ascend; `values[i]` is the weight of `indices[i]`."""

    indices: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


def document_vector(packed: bytes) -> SparseVector:
    """Make the vector of an episode from what `pack_words` makes of its texts. Empty for one without words."""
    words = packed_words(packed)
    terms, counts = np.unique(words[words != END], return_counts=True)
    weights = counts * (K1 + 1) / (counts + K1 * (1 - B + B * counts.sum() / AVERAGE_LENGTH))
    return SparseVector(tuple(terms.tolist()), tuple(weights.tolist()))


def query_vector(text: str) -> SparseVector:
    """The vector of a query: every form of its words once. Those that its language lacks match no document."""
    terms = sorted({number for word in query_words(text) for number in hashed(word.forms)})
    return SparseVector(tuple(terms), (1.0,) * len(terms))
