"""A linear model of words, which tells what short sentences in the languages of the docs say. Pure.

It has a head for each of its users: what statements say about their speaker, the attribute that they give a value for,
what questions ask about the user (`asked_of_user`), and what begins others' words or a game. `tools/statements.py`
trains it on labelled sentences.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple, cast
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from afterword_text.language import VOCABULARY, normalized

MODEL = Path(__file__).parent / "language_model" / "statements.npz"
READ_CHARACTERS = 240
BUCKET_BITS = 17
MULTIPLIERS = 2654435769, 2246822519, 3266489917
"""Odd numbers that spread others over 32 bits."""
KEPT_TEXTS, KEPT_WORDS = 512, 4096
_WHOLE: dict[str, str] = VOCABULARY["first_person"]["whole"]
Numbers = NDArray[np.uint32]

QUESTION_CHARACTERS = 160
"""A longer question has a subject of its own."""

_PATTERNS = {
    thing: re.compile(rf"(?<!\w)(?:{said})(?!\w)".replace("\n", ""))
    for thing, said in VOCABULARY["about_user"]["questions"].items()
}
GENERAL = "general"
QUESTIONS = GENERAL, "name", "home", "work", "age", "health", "-"
"""What the model tells apart. The last is every other question."""
CERTAIN = 0.6
"""Least probability of what a question asks, chosen on questions that the model had not seen."""


@lru_cache(maxsize=KEPT_TEXTS)
def probabilities(head: str, text: str) -> NDArray[np.float64]:
    """Return the probability of each class of a head."""
    features, (weights, scale) = features_of(text), _weights(head)
    logits = weights.take(features, axis=0).sum(axis=0) * (scale / len(features) ** 0.5)
    odds = np.exp(logits - logits.max())
    return cast("NDArray[np.float64]", odds / odds.sum())


@lru_cache(maxsize=KEPT_TEXTS)
def features_of(text: str) -> NDArray[np.intp]:
    """Return the buckets of a text's words, and of its pairs and triples of words.

    Words are also replaced by groups of words of like meaning in any language, of four sizes: "nurse" teaches what
    "Hebamme" means.
    """
    keys = np.array([_keys_of(word) for word in words_of(text)], np.uint32).T
    first, second, third = (keys * np.uint32(one) for one in MULTIPLIERS)
    found = (
        keys,
        first[:, :-1] + second[:, 1:],
        first[:, :-2] + second[:, 1:-1] + third[:, 2:],
        second[:, :-2] + third[:, 2:],
    )
    mixed = np.concatenate([each.ravel() for each in found])
    mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(MULTIPLIERS[1])
    buckets = np.sort(mixed >> np.uint32(32 - BUCKET_BITS))
    is_new = np.ones(len(buckets), np.bool_)
    np.not_equal(buckets[1:], buckets[:-1], out=is_new[1:])  # a tenth of what `np.unique` takes for so few
    return buckets[is_new].astype(np.intp)


@lru_cache(maxsize=KEPT_WORDS)
def _keys_of(word: str) -> tuple[int, ...]:
    """Return the hash of a word, and the keys of its groups."""
    model, hashes = _model(), _hashes([word])
    at, is_known = _is_in(model.words, hashes)
    return hashes.item(), *model.levels[:, model.groups[at.item()] if is_known.item() else -1].tolist()


def words_of(text: str) -> list[str]:
    """Return a text's words in small letters between marks of its ends; figures are all the same."""
    folded = unicodedata.normalize("NFC", text[:READ_CHARACTERS]).casefold()
    said = ("0" if word.isdigit() else _WHOLE.get(word, word) for word in re.findall(r"[^\W\d_]+|\d+", folded))
    return ["^", *" ".join(said).split(), "$"]


def is_place(text: str) -> bool:
    """Return whether a text begins with the name of a country, or of a town of at least 15,000 people."""
    words = text.split()
    names = [" ".join(words[:size]).strip(" ,.!").casefold() for size in (4, 3, 2, 1)]
    plain = (re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFD", name)) for name in names)
    return bool(_is_in(_model().places, _hashes((*names, *plain)))[1].any())


def _hashes(words: Iterable[str]) -> Numbers:
    return np.array([crc32(word.encode()) for word in words], np.uint32)


def _is_in(known: Numbers, wanted: Numbers) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the place of each number among ascending ones, and whether it is there."""
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return at, known[at] == wanted


class _Model(NamedTuple):
    """What `tools/statements.py` writes."""

    places: Numbers
    """The hashed names of places, ascending."""
    words: Numbers
    """The hashed words whose groups are known, ascending."""
    groups: NDArray[np.int16]
    """The smallest group of each word."""
    levels: Numbers
    """For each size of groups, the key of the group that has a smallest one; the last is that of unknown words."""


@cache
def _model() -> _Model:
    with np.load(MODEL) as arrays:
        return _Model(*map(arrays.__getitem__, _Model._fields))


@cache
def _weights(head: str) -> tuple[NDArray[np.int8], float]:
    """Return the weight of each bucket and class, and what 1 stands for."""
    with np.load(MODEL) as arrays:
        return arrays[head], float(arrays[f"{head}_scale"])


def asked_of_user(question: str) -> str | None:
    """Return what a question asks about the user: GENERAL, or the name of one thing; None if it asks about others."""
    text = _folded_question(question)
    if len(text) > QUESTION_CHARACTERS:
        return None
    if thing := asked_in_known_words(text):
        return thing
    asked = probabilities("questions", text)
    return QUESTIONS[int(asked.argmax())] if asked[:-1].max() >= CERTAIN else None


def asked_in_known_words(question: str) -> str | None:
    """Return the same if a phrase of the vocabulary tells it."""
    text = _folded_question(question)
    return next((thing for thing, pattern in _PATTERNS.items() if pattern.search(text)), None)


def _folded_question(question: str) -> str:
    return " ".join(normalized("NFKC", question[: QUESTION_CHARACTERS + 1]).lower().replace("’", "'").split())
