"""Prepare the language model that `language_identifier.py` of the text library reads, from py3langid's file.

Run `make language-model` after an upgrade of py3langid or a change of our languages.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from py3langid.langid import MODEL_DIR, MODEL_FILE
from py3langid.modelio import load_model

from afterword_text.language import NAMES
from afterword_text.language_identifier import LONGEST_NGRAM, MODEL

Arrays = dict[str, NDArray[Any]]

_BYTE = np.uint64(8)


def prepared(path: Path) -> Arrays:
    """Read the library's model, and return our arrays by name."""
    weights, priors, labels, moves, rows, features = load_model(path)
    ours = [column for column, label in enumerate(labels) if label in NAMES]
    strings = shortest_strings(np.asarray(moves).reshape(-1, 256), np.asarray(rows))
    own = {"weights": weights[:, ours], "priors": priors[ours], "languages": np.array([labels[at] for at in ours])}
    return {**ngrams_of(strings, np.asarray(features)), **own}


def shortest_strings(moves: NDArray[Any], rows: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the shortest string that leads to each state of an automaton, as a big-endian number.

    `moves[row, byte]` is the next state, and `rows[state]` is the row of a state. Raises: ValueError if a string is
    longer than an n-gram.
    """
    strings, seen = np.zeros(len(rows), np.uint64), np.zeros(len(rows), bool)
    states = np.array([0])
    for _ in range(LONGEST_NGRAM):
        seen[states] = True
        following = moves[rows[states]].ravel()
        origin = np.full(len(rows), -1)
        origin[following] = np.arange(len(following))
        found = np.flatnonzero((origin >= 0) & ~seen)
        before, byte = np.divmod(origin[found], 256)
        strings[found] = strings[states[before]] << _BYTE | byte.astype(np.uint64)
        states = found
    seen[states] = True
    if not seen.all():
        raise ValueError(f"an n-gram of the model has more than {LONGEST_NGRAM} bytes")
    return strings


def ngrams_of(strings: NDArray[np.uint64], features: NDArray[Any]) -> Arrays:
    """Return the n-grams and their features, in ascending order. `features` maps a state to its feature; −1 means none.

    A feature has several states: one for its n-gram, and one for each longer string that ends with it.
    """
    order = np.argsort(strings)
    order = order[features[order] >= 0]
    _, shortest = np.unique(features[order], return_index=True)
    chosen = order[np.sort(shortest)]
    return {"ngrams": strings[chosen], "features": features[chosen].astype(np.int32)}


if __name__ == "__main__":
    np.savez_compressed(MODEL, allow_pickle=False, **prepared(MODEL_DIR / MODEL_FILE))
