"""Trains the segmenter's topic model: python -m benchmarks.quality.shift_training

Writes `streams/segmenter/shifts-1.json`, the weights on all labelled dialogues. `make quality` trains it anew on parts
of them, and scores it on the rest.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from afterword.streams.segmenter import shifts
from afterword.streams.segmenter.shifts import LOOKED_BACK, Utterance, features, utterance_of
from benchmarks.quality.segmentation import Dialogue, Scores, labels, read, scores, table, text_tiling

WEIGHTS = Path(shifts.__file__).with_name(f"shifts-{shifts.VERSION}.json")
SHORTEST = 2
"""Default of `min_episode_size`."""
FOLDS = 5
STEPS = 150
RATE = 0.1
PENALTY = 6.0
RAREST = 10
"""Examples that a feature must hold in."""
CUT_AT = -0.4
"""Log-odds from which a message begins a topic; chosen once, for SuperDialseg and TIAGE together."""

Weights = Mapping[str, int]


class Example(NamedTuple):
    names: list[str]
    begins: bool


def train(dialogues: Sequence[Dialogue]) -> Weights:
    """Fit on the true episodes, then on those and the ones that the first fit makes: it meets its own mistakes."""
    said = [[utterance_of(turn.role, turn.text) for turn in dialogue] for dialogue in dialogues]
    truth = [labels(dialogue) for dialogue in dialogues]
    right = list(_examples(said, truth, truth))
    first = _fitted(right)
    made = [_segmented(first, utterances, shortest=1) for utterances in said]
    return _fitted([*right, *_examples(said, truth, made)])


def segment(weights: Weights, dialogue: Dialogue) -> list[bool]:
    """Cut a dialogue as the segmenter does."""
    return _segmented(weights, [utterance_of(turn.role, turn.text) for turn in dialogue], SHORTEST)


def show(console: Console) -> None:
    corpora = read()
    tasks, chats = corpora["superseg_validation"], corpora["tiage_train"] + corpora["tiage_validation"]
    rows = [
        ("SuperDialseg, trained on other dialogues of both", _folded(tasks, corpora["tiage_train"])),
        ("TIAGE validation, trained on SuperDialseg and TIAGE train",
         _scored(train(tasks + corpora["tiage_train"]), corpora["tiage_validation"])),
        ("SuperDialseg, trained on TIAGE alone", _scored(train(chats), tasks)),
        ("TIAGE, trained on SuperDialseg alone", _scored(train(tasks), chats)),
        ("SuperDialseg, TextTiling", scores([labels(d) for d in tasks], [text_tiling(d) for d in tasks])),
        ("TIAGE, TextTiling", scores([labels(d) for d in chats], [text_tiling(d) for d in chats])),
    ]  # fmt: skip
    console.print(table("Topic shifts found by the segmenter's model", rows))


def _scored(weights: Weights, dialogues: Sequence[Dialogue]) -> Scores:
    return scores([labels(d) for d in dialogues], [segment(weights, d) for d in dialogues])


def _folded(dialogues: Sequence[Dialogue], others: Sequence[Dialogue]) -> Scores:
    """Score each dialogue by weights that were trained without its fold."""
    truth, found = [], []
    for fold in range(FOLDS):
        rest = [d for n, d in enumerate(dialogues) if n % FOLDS != fold]
        weights = train([*rest, *others])
        for dialogue in dialogues[fold::FOLDS]:
            truth.append(labels(dialogue))
            found.append(segment(weights, dialogue))
    return scores(truth, found)


def _segmented(weights: Weights, said: Sequence[Utterance], shortest: int) -> list[bool]:
    found, start = [False] * len(said), 0
    for at in range(1, len(said)):
        if at - start < shortest:
            continue
        names = features(said[max(start, at - LOOKED_BACK) : at], said[at], at - start)
        if sum(weights.get(name, 0) for name in names) > 0:
            found[at], start = True, at
    return found


def _examples(
    said: Sequence[Sequence[Utterance]], truth: Sequence[Sequence[bool]], cuts: Sequence[Sequence[bool]]
) -> Iterator[Example]:
    for utterances, begins, cut in zip(said, truth, cuts, strict=True):
        start = 0
        for at in range(1, len(utterances)):
            before = utterances[max(start, at - LOOKED_BACK) : at]
            yield Example(features(before, utterances[at], at - start), begins[at])
            if cut[at]:
                start = at


def _fitted(examples: Sequence[Example]) -> Weights:
    """Fit a logistic regression with a quadratic penalty by Adam over all examples at once; weights in thousandths."""
    counts = Counter(chain.from_iterable(example.names for example in examples))
    names = sorted(name for name, count in counts.items() if count >= RAREST)
    place = {name: n for n, name in enumerate(names)}
    pairs = [(n, place[name]) for n, each in enumerate(examples) for name in each.names if name in place]
    row, column = np.array(pairs).T
    truth = np.array([example.begins for example in examples], float)
    weights, mean, square = np.zeros((3, len(names)))
    penalty = np.where(np.array(names) == "bias", 0, PENALTY)
    for step in range(1, STEPS + 1):
        odds = np.bincount(row, weights[column], len(truth))
        error = 1 / (1 + np.exp(-odds)) - truth
        slope = (np.bincount(column, error[row], len(names)) + penalty * weights) / len(truth)
        mean, square = 0.9 * mean + 0.1 * slope, 0.99 * square + 0.01 * slope**2
        rate = RATE if step < STEPS * 2 / 3 else RATE / 3
        weights = weights - rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-9)
    weights[place["bias"]] -= CUT_AT
    return {
        name: round(weight * 1000) for name, weight in zip(names, weights.tolist(), strict=True) if abs(weight) > 0.01
    }


def main() -> None:
    weights = train(list(chain.from_iterable(read().values())))
    WEIGHTS.write_text(json.dumps(weights, indent=0, ensure_ascii=True, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
