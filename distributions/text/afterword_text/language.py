"""Languages: detection, words reduced to stems, and the words of `vocabulary.toml`, where one file adds a language."""

import re
import tomllib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import regex
import Stemmer
from stop_words import LANGUAGE_MAPPING, get_stop_words

VOCABULARY: dict[str, Any] = tomllib.loads(Path(__file__).with_name("vocabulary.toml").read_text(encoding="utf-8"))
"""Words of natural languages that rules look for, by section and name."""

UNDETERMINED = "und"
"""ISO 639-2 code for a text whose language cannot be detected."""

NAMES: dict[str, str] = {**LANGUAGE_MAPPING, "no": "norwegian"}
"""Names in the stop-word and stemmer packages, by ISO 639-1 code. Only these languages are candidates, because short
texts are recognized better among few (with all 139 of the model's, "yes please" is Walloon)."""

_JANUARY_TO_DECEMBER = "january february march april may june july august september october november december"
MONTHS = _JANUARY_TO_DECEMBER.split()
WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
"""dateparser's names for them, as keys of `date_words`."""

MIN_CONFIDENCE = 0.2
"""A probability; without any evidence, each language has 1/32."""
PLAUSIBLE_CONFIDENCE = 0.02
"""Probability below which a language is ruled out; without any evidence, none is."""
LONGEST_STEMMED = 100
"""A string with more letters is not a word; a stemmer's time grows with the square of the length."""
STEMS = 16_384
"""Maximum number of stems that are cached, about 4 MB: a million words of dialogue have 15,000 different ones."""
DETECTED_CHARACTERS = 4000
BEGINNING = 1000
"""Maximum number of characters used for detection, whose time grows with the length."""

# Scripts without spaces: a run of these characters is split into overlapping pairs (as in Lucene's
# CJKAnalyzer). Thai, Lao, Myanmar, Khmer, Hiragana, Katakana, and the Han ideographs.
_UNSPACED = (
    r"\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ebd\u0ec0-\u0ece\u1000-\u103f\u1050-\u108f\u1780-\u17d3"
    r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0002ebef"
)
_UNSPACED_RUN = re.compile(rf"[{_UNSPACED}]+")
_ASCII_WORD = re.compile(r"[a-z0-9]+")
"""Equivalent to the general pattern for case-folded ASCII, and seven times as fast."""
_LETTERS = rf"[[\p{{L}}\p{{N}}]--[{_UNSPACED}]]"
_MARKS = rf"[[\p{{Mn}}\p{{Mc}}]--[{_UNSPACED}\ufe00-\ufe0f\U000e0100-\U000e01ef]]"
"""Without variation selectors, which only select the look of a character."""
_WORD = regex.compile(rf"(?V1)[{_UNSPACED}]+|{_LETTERS}+(?:{_MARKS}+{_LETTERS}*)*")
r"""The general pattern: marks, which `\w` lacks, continue a word (in Indic scripts, Hebrew, Arabic)."""
LONGEST_MARKS = 30
"""Maximum number of non-starters in a row, as in the Stream-Safe Text Format (UAX #15, section 13); no writing system
needs more."""
_MARKS_IN_A_ROW = regex.compile(rf"(?:\P{{ccc=0}}|[\u0f73\u0f75\u0f81\uff9e\uff9f]){{{LONGEST_MARKS}}}")
"""Matches that many non-starters: characters with a combining class, and those without one that decompose into such
characters."""
_JOINER = "\u034f"
"""COMBINING GRAPHEME JOINER: an invisible mark that ends such a run."""
_STEMMERS = frozenset(Stemmer.algorithms())
STEMMER = f"{Stemmer.version()} with {len(_STEMMERS)} algorithms"
"""PyStemmer's version: an index of another one has other stems, so it must be rebuilt."""
_LOADING = Lock()


def word_set(section: str, name: str) -> frozenset[str]:
    return frozenset(VOCABULARY[section][name].split())


def pattern(section: str, name: str) -> str:
    """Return a regular expression, which may be written on several lines."""
    return str(VOCABULARY[section][name]).replace("\n", "")


def detect(text: str) -> str:
    """Detect the language: an ISO 639-1 code, or `und`. Deterministic; takes about 0.2 ms."""
    code, confidence = _ranked(text[:DETECTED_CHARACTERS])[0]
    return code if confidence >= MIN_CONFIDENCE else UNDETERMINED


def detect_all(messages: Iterable[str]) -> str:
    """Detect the language of messages by their beginnings, so that a long quotation does not decide alone."""
    return detect("\n".join(content[:BEGINNING] for content in messages))


def plausible(text: str) -> tuple[str, ...]:
    """List the languages that the text may be in, most likely first: one or two for a sentence, many for a single word.

    The list starts with `und` if `detect` returns it.
    """
    ranked = _ranked(text[:DETECTED_CHARACTERS])
    likely = tuple(code for code, confidence in ranked if confidence >= PLAUSIBLE_CONFIDENCE)
    return (UNDETERMINED, *likely) if ranked[0][1] < MIN_CONFIDENCE else likely


def normalized(form: Literal["NFKC", "NFKD"], text: str) -> str:
    """Normalize in linear time, with a joiner after every LONGEST_MARKS combining marks in a row.

    Normalization sorts each run of marks in quadratic time, and holds the GIL.
    """
    if text.isascii():
        return text
    return unicodedata.normalize(form, _MARKS_IN_A_ROW.sub(rf"\g<0>{_JOINER}", text))


def words(text: str) -> list[str]:
    """Split a text into words, NFKC-normalized and case-folded; scripts without spaces become character pairs."""
    text = normalized("NFKC", text).casefold()
    if text.isascii():
        return _ASCII_WORD.findall(text)
    pieces: list[str] = []
    for word in _WORD.findall(text):
        is_unspaced = len(word) > 1 and _UNSPACED_RUN.fullmatch(word)
        pieces += map("".join, pairwise(word)) if is_unspaced else (word,)
    return pieces


def stem_words(text: str, language: str) -> list[str]:
    """Split a text into words in order, drop the language's stop words and reduce the rest to stems (Snowball).

    If the language has no stop words or stemmer, words stay unchanged.
    """
    return stems(words(text), language)


def stems(words: Iterable[str], language: str) -> list[str]:
    """Drop stop words and reduce the rest to stems; `words` is what the function `words` returned."""
    return [stemmed for word in words if (stemmed := stem(word, language)) is not None]


def stem(word: str, language: str) -> str | None:
    """Reduce a word to its stem; None for a stop word."""
    if len(word) > LONGEST_STEMMED:
        return word
    return _stem(word, language)


def is_common(word: str, language: str) -> bool:
    """Return whether a word is in the stop-words package's list, which is long for English."""
    return word.casefold() in _common_words(language)


@lru_cache(maxsize=STEMS)
def _stem(word: str, language: str) -> str | None:
    if word in stop_words(language):
        return None
    name = NAMES.get(language)
    # a stemmer has state, so each call creates its own, which takes 2 µs and is thread-safe
    return str(Stemmer.Stemmer(name).stemWord(word)) if name in _STEMMERS else word


_WITH_VARIANTS = ("ar", "fa")
"""Languages for which dateparser adds what is written with other letters."""


@cache
def date_words(language: str) -> Mapping[str, Any]:
    """Return dateparser's words for dates by their English names: "january", "monday", "week"; empty if it has none.

    Phrases such as "last week" are in `relative-type`, and patterns such as "3 days ago" in `relative-type-regex`.
    """
    if language in _WITH_VARIANTS:
        from dateparser.languages.loader import default_loader  # imported here because few callers need it

        return dict(default_loader.get_locale(language).info)
    # read without the package around it, which takes 50 ms to load
    package = find_spec("dateparser")
    folders = (
        [f"{folder}/data/date_translation_data" for folder in package.submodule_search_locations or ()]
        if package
        else []
    )
    spec = PathFinder.find_spec(language, folders)
    if not spec or not spec.loader:
        return {}
    data = module_from_spec(spec)
    spec.loader.exec_module(data)
    more = VOCABULARY["weekdays"].get(language, {})
    return {**data.info, **{key: [*data.info[key], *names] for key, names in more.items()}}


@cache
def stop_words(language: str) -> frozenset[str]:
    name = NAMES.get(language)
    entries = [VOCABULARY["search"]["english_stop_words"]] if language == "en" else get_stop_words(name) if name else []
    return frozenset(word for entry in entries for word in words(entry))


@cache
def _common_words(language: str) -> frozenset[str]:
    name = NAMES.get(language)
    return frozenset(entry.casefold() for entry in get_stop_words(name)) if name else frozenset()


@lru_cache(maxsize=512)
def _ranked(text: str) -> Sequence[tuple[str, float]]:
    """Rank the languages by probability, most likely first.

    Cached, because summary, quality check and index ask about the same texts of an episode. A summarizer has up to 64
    episodes of each partition in hand, and asks about all of them before it asks about the first of them again.
    """
    # imported here because NumPy and the model take a fifth of a second, and many commands detect no language
    from afterword_text.language_identifier import identifier

    with _LOADING:  # or every thread that needs it now would load it
        loaded = identifier()
    ranked: Sequence[tuple[str, float]] = loaded.rank(text)
    return ranked
