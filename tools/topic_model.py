"""Trains the segmenter's topic model: python -m tools.topic_model

Writes `streams/segmenter/shifts.json`, which ships, with the weights fitted to all dialogues in
`benchmarks/data/dialogues.jsonl.gz`. `python -m benchmarks.quality topics` trains it on parts of the dialogues, and
prints its scores on the rest and those of simple baselines.

P_k: Beeferman, Berger and Lafferty (1999). WindowDiff: Pevzner and Hearst (2002). Score: the mean of F1 and
1 − (P_k + WindowDiff) / 2, as defined in the SuperDialseg paper.
"""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate, chain, compress
from math import sqrt
from pathlib import Path
from statistics import mean, pstdev
from typing import NamedTuple

import numpy as np

from afterword.streams.segmenter import shifts
from afterword.streams.segmenter.shifts import TABLES, TopicListener, Utterance, Weights, utterance_of, weights_of
from afterword.streams.text.language import stem_words

DIALOGUES = Path(__file__).parents[1] / "benchmarks" / "data" / "dialogues.jsonl.gz"
WEIGHTS = Path(shifts.__file__).with_name("shifts.json")
SHORTEST = 2
"""The default of `min_episode_size`."""
FOLDS = 5
STEPS = 6
"""Steps of Newton's method. More steps change no weight by a thousandth."""
PENALTY = 4.0
RAREST = 5
"""A feature value must occur in this many examples."""
PULL = 60
"""Weight, in thousandths, of each message above the average: the best of 0, 60 and 120 over all rows of
`all_scores`."""
ROUNDS = 2
HALVINGS = 9
MOST = 2500
"""Thresholds are searched between these log-odds, in thousandths."""
SPEAKER = "speaker"
FORMAL = 4
"""The first value in the table of formality that counts as formal."""
BLOCK = 2
"""Turns on each side of a gap that TextTiling compares."""


class Turn(NamedTuple):
    role: str
    text: str
    begins: bool
    """Whether a topic begins with this turn."""


Dialogue = tuple[Turn, ...]
Corpus = Sequence[Dialogue]
Labels = Sequence[bool]
"""For each turn of a dialogue, whether a topic begins with it; the first turn is ignored."""


class Example(NamedTuple):
    values: list[int]
    begins: bool


class Fit(NamedTuple):
    """Fitted weights, in thousandths."""

    bias: int
    tables: Mapping[str, list[int]]

    def above(self, thresholds: Sequence[int]) -> "Fit":
        """Return the fit with the thresholds of informal and formal conversations subtracted."""
        informal, formal = thresholds
        tables = dict(self.tables)
        tables[SPEAKER] = [
            weight - (formal - informal) * (value >= FORMAL) for value, weight in enumerate(tables[SPEAKER])
        ]
        return Fit(self.bias - informal, tables)

    def weights(self) -> Weights:
        return weights_of(self.bias, PULL, self.tables)


class Scores(NamedTuple):
    pk: float
    window_diff: float
    f1: float
    turns_each: float
    """Mean number of turns of the segments found."""

    @property
    def score(self) -> float:
        return (self.f1 + 1 - (self.pk + self.window_diff) / 2) / 2


def read() -> dict[str, Dialogue]:
    """Return the dialogues by their ids, which begin with the name of their corpus and split."""
    with gzip.open(DIALOGUES, "rt", encoding="utf-8") as lines:
        return {row["id"]: tuple(Turn(*turn) for turn in row["turns"]) for row in map(json.loads, lines)}


def corpora() -> tuple[list[Dialogue], list[Dialogue], list[Dialogue]]:
    """Return SuperDialseg's validation split, and TIAGE's training and validation splits."""
    by_name: dict[str, list[Dialogue]] = {}
    for dialogue_id, dialogue in read().items():
        by_name.setdefault(dialogue_id.rpartition("_")[0], []).append(dialogue)
    return by_name["superseg_validation"], by_name["tiage_train"], by_name["tiage_validation"]


def write() -> None:
    tasks, chats, more_chats = corpora()
    fit = train([tasks, chats + more_chats])
    found = {"bias": fit.bias, "pull": PULL, "tables": fit.tables}
    WEIGHTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


# Training


def train(corpora: Sequence[Corpus]) -> Fit:
    """Fit the weights to all dialogues, and find the thresholds on every other one."""
    dialogues = list(chain.from_iterable(corpora))
    fit = fitted(list(examples(dialogues)), TABLES)
    return fit.above(_thresholds(fit, dialogues[::2]))


def segment(weights: Weights, dialogue: Dialogue, shortest: int = SHORTEST) -> list[bool]:
    """Split a dialogue as the segmenter does."""
    listener, found, length = TopicListener(), list[bool](), 0
    for now in _said(dialogue):
        is_long = length >= shortest
        cuts = is_long and listener.is_english(now) and listener.score(weights, now, length) > 0
        found.append(cuts)
        listener.take(now, opens=cuts or not length)
        length = 1 if cuts else length + 1
    return found


def examples(dialogues: Corpus) -> Iterator[Example]:
    """Yield the features of each message but the first, with episodes that end where people ended them."""
    for dialogue in dialogues:
        listener, length = TopicListener(), 0
        for now, begins in zip(_said(dialogue), labels(dialogue), strict=True):
            opens = begins or not length
            if length:
                yield Example(listener.features(now, length), begins)
            listener.take(now, opens=opens)
            length = 1 if opens else length + 1


def fitted(found: Sequence[Example], sizes: Mapping[str, int]) -> Fit:
    """Fit a logistic regression with a quadratic penalty by Newton's method. `sizes` has the sizes of the tables, in
    order."""
    starts = np.cumsum([1, *sizes.values()])
    columns = np.array([example.values for example in found]) + starts[:-1]
    holds = np.zeros((len(found), starts[-1]))
    holds[:, 0] = 1
    np.put_along_axis(holds, columns, 1, axis=1)
    truth = np.array([example.begins for example in found], float)
    used = np.flatnonzero(holds.sum(0) >= RAREST)
    seen, penalty, weights = holds[:, used], np.full(len(used), PENALTY), np.zeros(len(used))
    penalty[0] = 0
    for _ in range(STEPS):
        chance = 1 / (1 + np.exp(-seen @ weights))
        slope = seen.T @ (chance - truth) + penalty * weights
        bend = (seen * (chance * (1 - chance))[:, None]).T @ seen + np.diag(penalty + 1e-6)
        weights = weights - np.linalg.solve(bend, slope)
    whole = np.zeros(starts[-1])
    whole[used] = weights
    rounded = [round(weight * 1000) for weight in whole.tolist()]
    tables = {name: rounded[first : first + size] for (name, size), first in zip(sizes.items(), starts, strict=False)}
    return Fit(rounded[0], tables)


def _thresholds(fit: Fit, dialogues: Corpus) -> list[int]:
    """Return the lowest thresholds that find no more shifts than people did, in informal and in formal talk.

    They are searched in turn, because each of them changes the episodes of the other.
    """
    formal = [_formal(dialogue) for dialogue in dialogues]
    aims = _number_of_shifts(formal, [labels(dialogue) for dialogue in dialogues])
    thresholds = [0, 0]
    for register in (1, 0) * ROUNDS:
        lowest, highest = -MOST, MOST
        for _ in range(HALVINGS):
            thresholds[register] = (lowest + highest) // 2
            weights = fit.above(thresholds).weights()
            if _number_of_shifts(formal, [segment(weights, d) for d in dialogues])[register] > aims[register]:
                lowest = thresholds[register]
            else:
                highest = thresholds[register]
        thresholds[register] = highest
    return thresholds


def _formal(dialogue: Dialogue) -> list[bool]:
    """Return whether the talk is formal at each turn. Shifts do not change this."""
    found, listener = [], TopicListener()
    for now in _said(dialogue):
        found.append(listener.is_formal(now))
        listener.take(now, opens=True)
    return found


def _number_of_shifts(formal: Sequence[Labels], found: Sequence[Labels]) -> list[int]:
    """Count the shifts in informal and in formal messages."""
    registers = [register for f, cuts in zip(formal, found, strict=True) for register in compress(f[1:], cuts[1:])]
    return [registers.count(False), registers.count(True)]


@cache
def _said(dialogue: Dialogue) -> list[Utterance]:
    return [utterance_of(turn.role == "user", turn.text) for turn in dialogue]


# Scores


def labels(dialogue: Dialogue) -> list[bool]:
    return [turn.begins for turn in dialogue]


def scores(dialogues: Corpus, segmented: Iterable[Labels]) -> Scores:
    """Score a segmentation. P_k and WindowDiff are means over the dialogues; F1 is computed over all boundaries."""
    pairs = [(labels(d), found) for d, found in zip(dialogues, segmented, strict=True) if len(d) > 1]
    marks = [pair for one, other in pairs for pair in zip(one[1:], other[1:], strict=True)]
    right, marked = sum(a and b for a, b in marks), sum(a + b for a, b in marks)
    windows = [_boundaries_within(one, other) for one, other in pairs]
    return Scores(
        pk=mean(mean((a == 0) != (b == 0) for a, b in each) for each in windows),
        window_diff=mean(mean(a != b for a, b in each) for each in windows),
        f1=2 * right / marked if marked else 1.0,
        turns_each=sum(len(found) for _, found in pairs) / sum(1 + sum(found[1:]) for _, found in pairs),
    )


def _boundaries_within(reference: Labels, found: Labels) -> list[tuple[int, int]]:
    """Count the boundaries in each window, in the reference and as found.

    A window is half the mean length of the reference's segments, at least 2, and shorter than the dialogue.
    """
    size = min(max(2, round(len(reference) / (1 + sum(reference[1:])) / 2)), len(reference) - 1)
    sums = [list(accumulate((False, *each[1:]))) for each in (reference, found)]
    return [(sums[0][i + size] - sums[0][i], sums[1][i + size] - sums[1][i]) for i in range(len(reference) - size)]


def text_tiling(dialogue: Dialogue) -> list[bool]:
    """Split where cohesion has a valley deeper than the mean depth minus half a deviation: Hearst (1997), on turns.

    Unlike the segmenter, it sees the whole dialogue.
    """
    bags = [frozenset(stem_words(turn.text, "en")) for turn in dialogue]
    cohesion = [_overlap(bags[max(0, gap - BLOCK) : gap], bags[gap : gap + BLOCK]) for gap in range(1, len(bags))]
    depths = [_climb(cohesion, at, -1) + _climb(cohesion, at, 1) for at in range(len(cohesion))]
    limit = mean(depths) - pstdev(depths) / 2 if depths else 0
    deepest = [_is_peak(depths, at) for at in range(len(depths))]
    return [False, *(depth > max(limit, 0) and peak for depth, peak in zip(depths, deepest, strict=True))]


def _overlap(before: Sequence[frozenset[str]], after: Sequence[frozenset[str]]) -> float:
    """Return the cosine of the words on both sides, each counted once for every turn that contains it."""
    left, right = (Counter(chain.from_iterable(bags)) for bags in (before, after))
    norm = sqrt(sum(n * n for n in left.values()) * sum(n * n for n in right.values()))
    return sum(number * right[word] for word, number in left.items()) / norm if norm else 0.0


def _is_peak(numbers: Sequence[float], at: int) -> bool:
    """Return whether no neighbour is larger; the first of several equal ones in a row is the peak."""
    before, after = numbers[max(0, at - 1) : at], numbers[at + 1 : at + 2]
    return all(numbers[at] > each for each in before) and all(numbers[at] >= each for each in after)


def _climb(cohesion: Sequence[float], start: int, step: int) -> float:
    at = start
    while 0 <= at + step < len(cohesion) and cohesion[at + step] >= cohesion[at]:
        at += step
    return cohesion[at] - cohesion[start]


BASELINES: Mapping[str, Callable[[Dialogue], list[bool]]] = {
    "no boundary": lambda dialogue: [False] * len(dialogue),
    "before each user turn": lambda dialogue: [turn.role == "user" for turn in dialogue],
    "TextTiling": text_tiling,
    "people": labels,
}


def all_scores() -> Iterator[tuple[str, Scores]]:
    """Yield the scores of models on dialogues that they were not trained on, and the scores of BASELINES."""
    tasks, chats, unseen = corpora()
    all_chats = chats + unseen
    of_tasks, of_chats, of_both = (train(each).weights() for each in ([tasks], [all_chats], [tasks, chats]))
    yield "SuperDialseg, trained on the other dialogues of both", _cross_validated(tasks, chats, SHORTEST)
    yield "– with MIN_EPISODE_SIZE 4", _cross_validated(tasks, chats, 4)
    yield "SuperDialseg, trained on TIAGE alone", scores(tasks, [segment(of_chats, d) for d in tasks])
    yield "TIAGE validation, trained on the rest", scores(unseen, [segment(of_both, d) for d in unseen])
    yield "TIAGE, trained on SuperDialseg alone", scores(all_chats, [segment(of_tasks, d) for d in all_chats])
    corpus_names = {"SuperDialseg": tasks, "TIAGE validation": unseen, "TIAGE training": chats, "TIAGE": all_chats}
    for name, dialogues in corpus_names.items():
        for baseline, cut in BASELINES.items():
            yield f"{name}, {baseline}", scores(dialogues, map(cut, dialogues))


def _cross_validated(dialogues: Corpus, others: Corpus, shortest: int) -> Scores:
    """Score each dialogue with weights and thresholds that were found without its fold."""
    found: dict[int, list[bool]] = {}
    for fold in range(FOLDS):
        weights = train([[d for n, d in enumerate(dialogues) if n % FOLDS != fold], others]).weights()
        found |= {n: segment(weights, dialogues[n], shortest) for n in range(fold, len(dialogues), FOLDS)}
    return scores(dialogues, [found[n] for n in range(len(dialogues))])


if __name__ == "__main__":
    write()
