"""ROUGE, as F-measures over stemmed words (Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004).

The same words and the same counts as Google's `rouge-score` with `use_stemmer=True`; ROUGE-L is that of whole texts.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import snowballstemmer

_WORD = re.compile(r"[a-z0-9]+")
_SHORTEST_STEMMED = 4
"""rouge-score leaves shorter words as they are."""


@dataclass(frozen=True)
class Rouge:
    """Each 0 … 1."""

    one: float
    two: float
    longest: float


def rouge(candidate: str, reference: str) -> Rouge:
    made, wanted = _stems(candidate), _stems(reference)
    return Rouge(
        _overlap(made, wanted, 1), _overlap(made, wanted, 2), _f(_common(made, wanted), len(made), len(wanted))
    )


def _overlap(made: Sequence[str], wanted: Sequence[str], size: int) -> float:
    one, other = (Counter(tuple(w[i : i + size]) for i in range(len(w) - size + 1)) for w in (made, wanted))
    return _f((one & other).total(), one.total(), other.total())


def _common(made: Sequence[str], wanted: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(wanted) + 1)
    for word in made:
        above = row[:]
        for i, other in enumerate(wanted):
            row[i + 1] = above[i] + 1 if word == other else max(above[i + 1], row[i])
    return row[-1]


def _f(hits: int, made: int, wanted: int) -> float:
    return 2 * hits / (made + wanted) if hits else 0.0


def _stems(text: str) -> list[str]:
    stemmer = snowballstemmer.stemmer("porter")
    return [stemmer.stemWord(w) if len(w) >= _SHORTEST_STEMMED else w for w in _WORD.findall(text.lower())]
