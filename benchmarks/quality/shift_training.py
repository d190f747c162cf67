"""Trains the segmenter's topic model: python -m benchmarks.quality.shift_training [--select]

Writes `streams/segmenter/shifts-3.json`, the weights on all labelled dialogues. `make quality` trains it anew on parts
of them, and scores it on the rest. `--select` prints instead what each feature, of those in use and of those that were
refused, is worth inside a corpus and on the one that it was not trained on.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, compress
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from afterword.streams.segmenter import shifts
from afterword.streams.segmenter.shifts import (
    TABLES,
    TopicListener,
    Utterance,
    Weights,
    utterance_of,
    weights_of,
)
from benchmarks.quality.segmentation import Dialogue, Labels, Scores, labels, read, scores, table, text_tiling

WEIGHTS = Path(shifts.__file__).with_name(f"shifts-{shifts.VERSION}.json")
SHORTEST = 2
"""Default of `min_episode_size`."""
FOLDS = 5
STEPS = 6
"""Of Newton's method: more change no weight by a thousandth."""
PENALTY = 4.0
RAREST = 5
"""Examples that a value must hold in."""
PULL = 60
"""Weight of each message saved, in thousandths: of 0, 60 and 120 the best over all rows of `show`."""
ROUNDS = 2
HALVINGS = 9
MOST = 2500
"""Log-odds between which the thresholds are searched, in thousandths."""
SPEAKER = "speaker"
FORMAL = 4
"""First value of that table which is of a formal conversation."""

Corpus = Sequence[Dialogue]
Values = Callable[[TopicListener, Utterance, int], int]
REFUSED: Mapping[str, tuple[int, Values]] = {
    "who speaks, also where talk is not formal": (
        8,
        lambda listener, now, _: now.is_user << 2 | (listener.last >> 1 & 1) << 1 | now.asks,
    ),
    "words": (8, lambda _topic, now, _length: min(now.words // 5, 7)),
    "new words, also where talk is not formal": (
        8,
        lambda listener, now, _: min(len(set(now.content) - set(listener.content)), 7),
    ),
    "share of the last 16 words": (
        4,
        lambda listener, now, _: min(len(set(now.content) & set(listener.content[-16:])), 3),
    ),
    "ends asking": (4, lambda listener, now, _: now.ends_asking << 1 | listener.last >> 1 & 1),
}
"""Features that add little, or nothing on the corpus that they were not trained on: how many values, and which."""


class Example(NamedTuple):
    values: list[int]
    begins: bool


class Fit(NamedTuple):
    """Weights learnt from examples, in thousandths."""

    bias: int
    tables: Mapping[str, list[int]]

    def above(self, thresholds: Sequence[int]) -> "Fit":
        """The fit with these thresholds in it: of conversations that are not formal, and of those that are."""
        chatty, formal = thresholds
        tables = dict(self.tables)
        tables[SPEAKER] = [
            weight - (formal - chatty) * (value >= FORMAL) for value, weight in enumerate(tables[SPEAKER])
        ]
        return Fit(self.bias - chatty, tables)

    def weights(self) -> Weights:
        return weights_of(self.bias, PULL, self.tables)


def train(corpora: Sequence[Corpus]) -> Fit:
    """Fit on all dialogues, with thresholds that they gave."""
    dialogues = list(chain.from_iterable(corpora))
    fit = fitted(list(examples(dialogues)), TABLES)
    return fit.above(_thresholds(fit, dialogues[::2]))


def segment(weights: Weights, dialogue: Dialogue, shortest: int = SHORTEST) -> list[bool]:
    """Cut a dialogue as the segmenter does."""
    said = _said(dialogue)
    listener, found, length = TopicListener(), list[bool](), 0
    for now in said:
        is_long = length >= shortest
        cuts = is_long and listener.is_english(now) and listener.score(weights, now, length) > 0
        found.append(cuts)
        listener.take(now, opens=cuts or not length)
        length = 1 if cuts else length + 1
    return found


def examples(dialogues: Corpus, others: Mapping[str, tuple[int, Values]] | None = None) -> Iterator[Example]:
    """The model's view of each message but the first, where episodes end as people ended them."""
    extra = [values for _, values in (others or {}).values()]
    for dialogue in dialogues:
        listener, length = TopicListener(), 0
        for now, begins in zip(_said(dialogue), labels(dialogue), strict=True):
            opens = begins or not length
            if length:
                values = listener.features(now, length) + [value(listener, now, length) for value in extra]
                yield Example(values, begins)
            listener.take(now, opens=opens)
            length = 1 if opens else length + 1


def fitted(found: Sequence[Example], sizes: Mapping[str, int]) -> Fit:
    """Fit a logistic regression with a quadratic penalty by Newton's method. `sizes`: of the tables, in order."""
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


def show(console: Console) -> None:
    corpora = read()
    tasks, chats = corpora["superseg_validation"], corpora["tiage_train"] + corpora["tiage_validation"]
    of_tasks, of_chats, of_both = (
        train(each).weights() for each in ([tasks], [chats], [tasks, corpora["tiage_train"]])
    )
    held_out = _held_out(tasks, corpora["tiage_train"], SHORTEST)
    rows = [
        ("SuperDialseg, trained on other dialogues of both", held_out),
        ("– with MIN_EPISODE_SIZE 4", _held_out(tasks, corpora["tiage_train"], 4)),
        ("SuperDialseg, trained on TIAGE alone", _scored(of_chats, tasks)),
        ("SuperDialseg, TextTiling", scores([labels(d) for d in tasks], [text_tiling(d) for d in tasks])),
        ("SuperDialseg, people", scores([labels(d) for d in tasks], [labels(d) for d in tasks])),
        ("TIAGE validation, trained on SuperDialseg and TIAGE train",
         _scored(of_both, corpora["tiage_validation"])),
        ("TIAGE, trained on SuperDialseg alone", _scored(of_tasks, chats)),
        ("TIAGE, TextTiling", scores([labels(d) for d in chats], [text_tiling(d) for d in chats])),
        ("TIAGE, people", scores([labels(d) for d in chats], [labels(d) for d in chats])),
    ]  # fmt: skip
    console.print(table("Topic shifts found by the segmenter's model", rows))


def show_selection(console: Console) -> None:
    """Print the area under the ROC curve without each table, and with each that was refused."""
    corpora = read()
    tasks, chats = corpora["superseg_validation"], corpora["tiage_train"] + corpora["tiage_validation"]
    sizes = {**TABLES, **{name: size for name, (size, _) in REFUSED.items()}}
    found = [list(examples(dialogues, REFUSED)) for dialogues in (tasks, chats)]
    made = Table("features", "SuperDialseg", "TIAGE", "SuperDialseg → TIAGE", "TIAGE → SuperDialseg")
    trials = [("all in use", list(TABLES))]
    trials += [(f"– {name}", [each for each in TABLES if each != name]) for name in TABLES]
    trials += [(f"+ {name}", [*TABLES, name]) for name in REFUSED]
    for title, names in trials:
        inside, across = _areas(*found, sizes, names)
        made.add_row(title, *(f"{area:.3f}" for area in (*inside, *across)))
    console.print(made)


def _areas(
    tasks: Sequence[Example], chats: Sequence[Example], sizes: Mapping[str, int], names: Sequence[str]
) -> tuple[list[float], list[float]]:
    """Areas of both corpora on halves of themselves, and of each trained on the other."""
    places = [n for n, name in enumerate(sizes) if name in names]
    kept = {name: size for name, size in sizes.items() if name in names}
    both = [[Example([e.values[n] for n in places], e.begins) for e in found] for found in (tasks, chats)]
    inside = [mean(_area(fitted(one[n::2], kept), one[1 - n :: 2]) for n in (0, 1)) for one in both]
    return inside, [_area(fitted(one, kept), other) for one, other in (both, both[::-1])]


def _area(fit: Fit, found: Sequence[Example]) -> float:
    """Chance that a message that begins a topic has a higher score than one that does not."""
    odds = [sum(tables[value] for tables, value in zip(fit.tables.values(), e.values, strict=True)) for e in found]
    _, place, number = np.unique(odds, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(number) - (number - 1) / 2)[place]
    begins = np.array([example.begins for example in found])
    yes, no = begins.sum(), (~begins).sum()
    return float((ranks[begins].sum() - yes * (yes + 1) / 2) / (yes * no))


def _thresholds(fit: Fit, dialogues: Corpus) -> list[int]:
    """Search the lowest thresholds that find no more shifts than people did, in formal talk and in other.

    Each in its turn, because either moves the episodes of the other.
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
    """Whether the talk is formal at each turn; shifts do not change it."""
    found, listener = [], TopicListener()
    for now in _said(dialogue):
        found.append(listener.is_formal(now))
        listener.take(now, opens=True)
    return found


def _number_of_shifts(formal: Sequence[Labels], found: Sequence[Labels]) -> list[int]:
    """Shifts in messages that are not formal, and in those that are."""
    registers = [register for f, cuts in zip(formal, found, strict=True) for register in compress(f[1:], cuts[1:])]
    return [registers.count(False), registers.count(True)]


def _scored(weights: Weights, dialogues: Corpus) -> Scores:
    return scores([labels(d) for d in dialogues], [segment(weights, d) for d in dialogues])


def _held_out(dialogues: Corpus, others: Corpus, shortest: int) -> Scores:
    """Score each dialogue by weights, and by a threshold, that were found without its fold."""
    truth, found = [], []
    for fold in range(FOLDS):
        weights = train([[d for n, d in enumerate(dialogues) if n % FOLDS != fold], others]).weights()
        for dialogue in dialogues[fold::FOLDS]:
            truth.append(labels(dialogue))
            found.append(segment(weights, dialogue, shortest))
    return scores(truth, found)


@cache
def _said(dialogue: Dialogue) -> list[Utterance]:
    return [utterance_of(turn.role == "user", turn.text) for turn in dialogue]


def write() -> None:
    corpora = read()
    tasks, chats = corpora["superseg_validation"], corpora["tiage_train"] + corpora["tiage_validation"]
    fit = train([tasks, chats])
    found = {"bias": fit.bias, "pull": PULL, "tables": fit.tables}
    WEIGHTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--select", action="store_true", help="print what each feature is worth")
    if parser.parse_args().select:
        show_selection(Console(width=120))
    else:
        write()


if __name__ == "__main__":
    main()
