"""Which sentences the others resemble, and a choice of them that does not repeat itself."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

DAMPING = 0.85
"""Of PageRank, as in the paper (there as d = 0.15 for the jump)."""
ITERATIONS = 40
RELEVANCE = 0.7
"""λ of MMR: the share of relevance against novelty."""
REPETITION = 0.9
"""Cosine from which a sentence only says again what another one says."""


def similarity(sentences: Sequence[Sequence[str]]) -> Matrix:
    """tf-idf cosine of n lists of terms: n × n, each 0 … 1."""
    vocabulary = {term: i for i, term in enumerate(dict.fromkeys(t for terms in sentences for t in terms))}
    counts = np.zeros((len(sentences), max(1, len(vocabulary))))
    for row, terms in enumerate(sentences):
        for term, count in Counter(terms).items():
            counts[row, vocabulary[term]] = count
    vectors = counts * np.log1p(len(sentences) / np.maximum(1, (counts > 0).sum(axis=0)))
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return np.asarray(vectors @ vectors.T, dtype=np.float64)


def centrality(similar: Matrix) -> list[float]:
    """Continuous LexRank, scaled to a maximum of 1 (Erkan and Radev, "LexRank", JAIR 22, 2004)."""
    count = len(similar)
    if count == 0:
        return []
    walk = similar + 1e-9
    walk /= walk.sum(axis=1, keepdims=True)
    rank = np.full(count, 1 / count)
    for _ in range(ITERATIONS):
        rank = (1 - DAMPING) / count + DAMPING * (rank @ walk)
    return [float(value) for value in rank / rank.max()]


def diverse(weights: Sequence[float], similar: Matrix, count: int, fits: Callable[[list[int]], bool]) -> list[int]:
    """Up to `count` indices, best first, by maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998).

    `fits` says whether a choice may still be made longer by its last index, for instance by its characters.
    """
    chosen: list[int] = []
    left = set(range(len(weights)))
    while left and len(chosen) < count:
        best = max(sorted(left), key=lambda i: _marginal(i, weights, similar, chosen))
        left.discard(best)
        if not any(similar[best, other] >= REPETITION for other in chosen) and fits([*chosen, best]):
            chosen.append(best)
    return chosen


def _marginal(index: int, weights: Sequence[float], similar: Matrix, chosen: list[int]) -> float:
    repeated = max((float(similar[index, other]) for other in chosen), default=0.0)
    return RELEVANCE * weights[index] - (1 - RELEVANCE) * repeated
