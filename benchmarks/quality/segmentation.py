"""Topic segmentation on labelled dialogues: P_k, WindowDiff, F1 and their Score, and the baselines beside it.

P_k: Beeferman, Berger and Lafferty (1999). WindowDiff: Pevzner and Hearst (2002). Score: the mean of F1 and
1 − (P_k + WindowDiff) / 2, as the SuperDialseg paper defines it.
"""

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import sqrt
from pathlib import Path
from statistics import mean, pstdev
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from afterword.streams.language import stem_words

DIALOGUES = Path(__file__).parent / "data" / "dialogues.jsonl.gz"
BLOCK = 2
"""Turns on each side of a gap that TextTiling compares."""

Labels = Sequence[bool]
"""Whether a topic begins with a turn, for each turn of a dialogue; that of the first turn is ignored."""


class Turn(NamedTuple):
    role: str
    text: str
    begins: bool
    """A topic begins with it."""


Dialogue = tuple[Turn, ...]


class Scores(NamedTuple):
    pk: float
    window_diff: float
    f1: float
    turns_each: float
    """Mean number of turns of the segments found."""

    @property
    def score(self) -> float:
        return (self.f1 + 1 - (self.pk + self.window_diff) / 2) / 2


def read() -> dict[str, list[Dialogue]]:
    """Dialogues by the corpus and split that they are from."""
    found: dict[str, list[Dialogue]] = {}
    with gzip.open(DIALOGUES, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            corpus = row["id"].rpartition("_")[0]
            found.setdefault(corpus, []).append(tuple(Turn(*turn) for turn in row["turns"]))
    return found


def labels(dialogue: Dialogue) -> list[bool]:
    return [turn.begins for turn in dialogue]


def window(reference: Labels) -> int:
    """Half the mean length of the reference's segments, at least 2, and less than the dialogue's length."""
    segments = 1 + sum(reference[1:])
    return min(max(2, round(len(reference) / segments / 2)), len(reference) - 1)


def pk(reference: Labels, found: Labels) -> float:
    """Share of the pairs of turns, a window apart, that one has in the same segment and the other not."""
    return mean((a == 0) != (b == 0) for a, b in _boundaries_within(reference, found))


def window_diff(reference: Labels, found: Labels) -> float:
    """Share of the windows in which the number of boundaries differs."""
    return mean(a != b for a, b in _boundaries_within(reference, found))


def f1(references: Iterable[Labels], found: Iterable[Labels]) -> float:
    """F1 of the boundaries of all dialogues together; 1 if there are none on either side."""
    pairs = [pair for r, f in zip(references, found, strict=True) for pair in zip(r[1:], f[1:], strict=True)]
    right, marked = sum(a and b for a, b in pairs), sum(a + b for a, b in pairs)
    return 2 * right / marked if marked else 1.0


def scores(references: Sequence[Labels], found: Sequence[Labels]) -> Scores:
    """P_k and WindowDiff are means over the dialogues of two turns and more."""
    pairs = [(r, f) for r, f in zip(references, found, strict=True) if len(r) > 1]
    segments = len(found) + sum(sum(f[1:]) for f in found)
    return Scores(
        mean(pk(r, f) for r, f in pairs),
        mean(window_diff(r, f) for r, f in pairs),
        f1(references, found),
        sum(map(len, found)) / segments,
    )


def text_tiling(dialogue: Dialogue) -> list[bool]:
    """Cut where cohesion has a valley deeper than the mean depth less half a deviation: Hearst (1997), on turns.

    It sees what comes later.
    """
    bags = [frozenset(stem_words(turn.text, "en")) for turn in dialogue]
    gaps = range(1, len(bags))
    cohesion = [_overlap(bags[max(0, gap - BLOCK) : gap], bags[gap : gap + BLOCK]) for gap in gaps]
    depths = [_depth(cohesion, index) for index in range(len(cohesion))]
    limit = mean(depths) - pstdev(depths) / 2 if depths else 0
    deepest = [_is_peak(depths, index) for index in range(len(depths))]
    return [False, *(depth > max(limit, 0) and peak for depth, peak in zip(depths, deepest, strict=True))]


def no_boundaries(dialogue: Dialogue) -> list[bool]:
    return [False] * len(dialogue)


def each_question(dialogue: Dialogue) -> list[bool]:
    """Cut before each turn of the user."""
    return [turn.role == "user" for turn in dialogue]


Segmenting = Callable[[Dialogue], list[bool]]
BASELINES: dict[str, Segmenting] = {
    "none": no_boundaries,
    "before each user turn": each_question,
    "TextTiling": text_tiling,
}


def measured(dialogues: Sequence[Dialogue], segment: Segmenting) -> Scores:
    return scores([labels(dialogue) for dialogue in dialogues], [segment(dialogue) for dialogue in dialogues])


def table(title: str, rows: Iterable[tuple[str, Scores]]) -> Table:
    made = Table("method", "P_k", "WindowDiff", "F1", "Score", "turns a segment", title=title)
    for name, found in rows:
        numbers = (found.pk, found.window_diff, found.f1, found.score)
        made.add_row(name, *(f"{number:.3f}" for number in numbers), f"{found.turns_each:.1f}")
    return made


def show(console: Console) -> None:
    for corpus, dialogues in read().items():
        rows = [(name, measured(dialogues, segment)) for name, segment in BASELINES.items()]
        console.print(table(f"Topics: {len(dialogues)} dialogues, {corpus}", rows))


def _boundaries_within(reference: Labels, found: Labels) -> list[tuple[int, int]]:
    """Numbers of boundaries in each window, in the reference and as found."""
    size = window(reference)
    sums = [list(accumulate((False, *each[1:]))) for each in (reference, found)]
    spans = range(len(reference) - size)
    return [(sums[0][i + size] - sums[0][i], sums[1][i + size] - sums[1][i]) for i in spans]


def _overlap(before: Sequence[frozenset[str]], after: Sequence[frozenset[str]]) -> float:
    """Cosine of the turns' words on either side, by the number of turns that have them."""
    left, right = _counts(before), _counts(after)
    dot = sum(number * right.get(word, 0) for word, number in left.items())
    norm = sqrt(sum(n * n for n in left.values()) * sum(n * n for n in right.values()))
    return dot / norm if norm else 0.0


def _counts(bags: Sequence[frozenset[str]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for bag in bags:
        for word in bag:
            found[word] = found.get(word, 0) + 1
    return found


def _depth(cohesion: Sequence[float], index: int) -> float:
    """Depth of the valley at the index: the climb to the nearest peaks on both sides."""
    return sum(_climb(cohesion, index, step) for step in (-1, 1))


def _is_peak(numbers: Sequence[float], index: int) -> bool:
    """Return whether no neighbour is larger; of equal ones in a row the first is the peak."""
    before, after = numbers[max(0, index - 1) : index], numbers[index + 1 : index + 2]
    return all(numbers[index] > each for each in before) and all(numbers[index] >= each for each in after)


def _climb(cohesion: Sequence[float], index: int, step: int) -> float:
    at = index
    while 0 <= at + step < len(cohesion) and cohesion[at + step] >= cohesion[at]:
        at += step
    return cohesion[at] - cohesion[index]
