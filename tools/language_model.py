"""Prepare the language model that `streams/text/language_identifier.py` reads, from py3langid's file.

Run `make language-model` after an upgrade of py3langid or a change of our languages.
"""

import itertools
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from py3langid.langid import MODEL_DIR, MODEL_FILE
from py3langid.modelio import load_model

from afterword.streams.text.language import NAMES
from afterword.streams.text.language_identifier import BUCKET_BITS, LONGEST_NGRAM, MODEL, NO_NGRAM, SLOT_BITS, hashed

Arrays = dict[str, NDArray[Any]]

FIRST_MULTIPLIER = 0x9E3779B97F4A7C15
SHIFTS = np.arange(2**16, dtype=np.uint16)
TRIED_AT_ONCE = 256
_BYTE = np.uint64(8)


class NoTable(Exception):
    """There is no such table: two n-grams of a bucket collide, or no shift makes room for a bucket."""


def prepared(path: Path) -> Arrays:
    """Read the library's model, and return our arrays by name."""
    weights, priors, labels, moves, rows, features = load_model(path)
    ours = [column for column, label in enumerate(labels) if label in NAMES]
    strings = shortest_strings(np.asarray(moves).reshape(-1, 256), np.asarray(rows))
    own = {"weights": weights[:, ours], "priors": priors[ours], "languages": np.array([labels[at] for at in ours])}
    return {**table(*ngrams_of(strings, np.asarray(features))), **own}


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


def ngrams_of(strings: NDArray[np.uint64], features: NDArray[Any]) -> tuple[NDArray[np.uint64], NDArray[Any]]:
    """Return the n-grams and, in the same order, their features. `features` maps a state to its feature; −1 means none.

    A feature has several states: one for its n-gram, and one for each longer string that ends with it.
    """
    order = np.argsort(strings)
    order = order[features[order] >= 0]
    numbers, shortest = np.unique(features[order], return_index=True)
    return strings[order][shortest], numbers


def table(ngrams: NDArray[np.uint64], features: NDArray[Any]) -> Arrays:
    """Put n-grams into a perfect hash table, and return those arguments of `Identifier` by name."""
    for multiplier in itertools.count(FIRST_MULTIPLIER, 2):
        with suppress(NoTable):
            shifts, slots = displaced(*hashed(ngrams, np.uint64(multiplier)))
            break
    by_slot = np.full(2**SLOT_BITS, NO_NGRAM), np.zeros(2**SLOT_BITS, np.int32)
    for slotted, values in zip(by_slot, (ngrams, features), strict=True):
        slotted[slots] = values
    names = ("ngrams", "features", "shifts", "multiplier")
    return dict(zip(names, (*by_slot, shifts, np.array(multiplier, np.uint64)), strict=True))


def displaced(buckets: NDArray[Any], places: NDArray[Any]) -> tuple[NDArray[np.uint16], NDArray[Any]]:
    """Find a shift for each bucket so that every n-gram has a slot of its own, and return the shifts. Raises: NoTable.

    The largest bucket comes first, because it needs the most room (Belazzougui, Botelho, Dietzfelbinger: Hash,
    displace, and compress, 2009).
    """
    shifts, slots, taken = np.zeros(2**BUCKET_BITS, np.uint16), np.zeros_like(places), np.zeros(2**SLOT_BITS, bool)
    by_bucket = np.argsort(buckets, kind="stable")
    members = np.split(by_bucket, np.flatnonzero(np.diff(buckets[by_bucket])) + 1)
    for bucket in sorted(members, key=len, reverse=True):
        shift = first_fit(taken, places[bucket])
        slots[bucket] = places[bucket] ^ shift
        taken[slots[bucket]] = True
        shifts[buckets[bucket[0]]] = shift
    return shifts, slots


def first_fit(taken: NDArray[np.bool_], places: NDArray[Any]) -> Any:
    """Return the first shift with which all slots are free and different. Raises: NoTable."""
    if len(np.unique(places)) == len(places):
        for first in range(0, len(SHIFTS), TRIED_AT_ONCE):
            shifts = SHIFTS[first : first + TRIED_AT_ONCE]
            fits = ~taken[places ^ shifts[:, np.newaxis]].any(axis=1)
            if fits.any():
                return shifts[fits.argmax()]
    raise NoTable


if __name__ == "__main__":
    np.savez_compressed(MODEL, allow_pickle=False, **prepared(MODEL_DIR / MODEL_FILE))
