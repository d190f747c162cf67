"""Which language a text is in, and its words reduced to what a search should match."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from threading import Lock
from typing import Any

import snowballstemmer
from py3langid.langid import MODEL_FILE, LanguageIdentifier
from stop_words import LANGUAGE_MAPPING, get_stop_words

UNDETERMINED = "und"
"""ISO 639-2's code for a text too short, or too strange, to tell."""

NAMES: dict[str, str] = {**LANGUAGE_MAPPING, "no": "norwegian"}
"""ISO 639-1 → the name that stop words and stemmers go by. These are the languages that are told apart: among fewer
candidates short texts are recognised more often (with all 139 of the model, "yes please" is Walloon)."""

MIN_CONFIDENCE = 0.2
"""Of 1; a text without any evidence scores 1/32."""
PLAUSIBLE_CONFIDENCE = 0.02
"""Below that a language is out of the question; a text without any evidence leaves all of them."""
LONGEST_STEMMED = 100
"""Letters. What is longer is no word of a language, and the time of a stemmer grows with the square of the length."""
DETECTED_CHARACTERS = 4000
"""A language does not change after that, and the time to detect it grows with the length."""

ENGLISH_STOP_WORDS = """
i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers herself it its
itself they them their theirs themselves what which who whom this that these those am is are was were be been being have
has had having do does did doing would should could ought might must shall will can cannot may a an the and but if or
because as until while of at by for with about against between into through during before after above below to from up
down in out on off over under again further then once here there when where why how all any both each few more most
other some such no nor not only own same so than too very s t d m ll re ve don isn aren wasn weren hasn haven hadn doesn
didn won wouldn shan shouldn couldn mustn let
"""
"""Snowball's list and the halves of its contractions. The stop-words package has 1,300 English ones, "order", "room",
"problem" and "microsoft" among them, which are what people search for."""

# Written without spaces: a run of such characters is no word, so it becomes overlapping pairs (as in Lucene's
# CJKAnalyzer). Thai, Lao, Myanmar, Khmer, Hiragana, Katakana, and the Han ideographs.
_UNSPACED = (
    r"\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ebd\u0ec0-\u0ece\u1000-\u103f\u1050-\u108f\u1780-\u17d3"
    r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0002ebef"
)
_UNSPACED_RUN = re.compile(rf"[{_UNSPACED}]+")
_ASCII_WORD = re.compile(r"[a-z0-9]+")
"""What the pattern of all words comes to in a case-folded text of ASCII, several times as fast."""
_MARK_CODES = range(0x300, 0x1F000)
"""All marks that belong to words lie here; searching all of Unicode for them takes 0.2 s."""
_LOADING = Lock()
_VARIATION_SELECTORS = range(0xFE00, 0xFE10)
"""Marks to Unicode, but they choose the look of a character: no part of a word."""


def detect(text: str) -> str:
    """The text's language as an ISO 639-1 code, or `und`. Deterministic; some 0.2 ms a call."""
    code, confidence = _ranked(text[:DETECTED_CHARACTERS])[0]
    return code if confidence >= MIN_CONFIDENCE else UNDETERMINED


def plausible(text: str) -> tuple[str, ...]:
    """All languages that the text may be in, most likely first: one or two for a sentence, many for a single word.

    `und` is among them where `detect` would say it.
    """
    ranked = _ranked(text[:DETECTED_CHARACTERS])
    likely = tuple(code for code, confidence in ranked if confidence >= PLAUSIBLE_CONFIDENCE)
    return (UNDETERMINED, *likely) if ranked[0][1] < MIN_CONFIDENCE else likely


def words(text: str) -> list[str]:
    """Unicode words, compatibility-normalised and case-folded, in order; unspaced scripts as character pairs."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return _ASCII_WORD.findall(text) if text.isascii() else list(_split(text))


def stem_words(text: str, language: str) -> list[str]:
    """The text's words in order, without the language's stop words, each reduced to its stem (Snowball).

    A language without stop words or stemmer keeps its words as they are.
    """
    return stems(words(text), language)


def stems(words: Iterable[str], language: str) -> list[str]:
    """As `stem_words`, of words as `words` makes them."""
    ignored, name = _stop_words(language), _stemmer_name(language)
    kept = [word for word in words if word not in ignored]
    return [_stem(word, name) if len(word) <= LONGEST_STEMMED else word for word in kept] if name else kept


def is_common(word: str, language: str) -> bool:
    """A word that tells nothing by itself, after the stop-words package's list: a long one for English."""
    return word.casefold() in _common_words(language)


def _split(text: str) -> Iterator[str]:
    for word in _word_pattern().findall(text):
        if len(word) > 1 and _UNSPACED_RUN.fullmatch(word):
            yield from (word[i : i + 2] for i in range(len(word) - 1))
        else:
            yield word


@cache
def _word_pattern() -> re.Pattern[str]:
    r"""Marks continue a word: vowel signs of Indic scripts, points of Hebrew and Arabic. They are not in `\w`."""
    codes = (chr(code) for code in _MARK_CODES if code not in _VARIATION_SELECTORS)
    found = (mark for mark in codes if unicodedata.category(mark) in ("Mn", "Mc"))
    marks = "".join(mark for mark in found if not _UNSPACED_RUN.match(mark))
    letters = rf"[^\W_{_UNSPACED}]"
    return re.compile(rf"[{_UNSPACED}]+|{letters}+(?:[{marks}]+{letters}*)*")


@lru_cache(maxsize=65_536)
def _stem(word: str, name: str) -> str:
    # A stemmer keeps its working state in itself; one for each call costs 0.3 µs and is safe in any thread.
    return str(snowballstemmer.stemmer(name).stemWord(word))


@cache
def _stop_words(language: str) -> frozenset[str]:
    name = NAMES.get(language)
    entries = [ENGLISH_STOP_WORDS] if language == "en" else get_stop_words(name) if name else []
    return frozenset(word for entry in entries for word in words(entry))


@cache
def _common_words(language: str) -> frozenset[str]:
    name = NAMES.get(language)
    return frozenset(entry.casefold() for entry in get_stop_words(name)) if name else frozenset()


@cache
def _stemmer_name(language: str) -> str | None:
    name = NAMES.get(language)
    return name if name in snowballstemmer.algorithms() else None


@lru_cache(maxsize=64)
def _ranked(text: str) -> Sequence[tuple[str, float]]:
    """Languages with their probabilities, most likely first.

    The last ones are kept: of one episode the prompt, the quality check and the index ask the same.
    """
    with _LOADING:  # threads that need it at the same moment would each take 0.7 s of CPU to load it
        identifier = _identifier()
    ranked: Sequence[tuple[str, float]] = identifier.rank(text)
    return ranked


@cache
def _identifier() -> Any:
    # our own instance: restricting the library's shared one would change it for everybody in the process
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages([code for code in NAMES if code in identifier.labels])
    return identifier
