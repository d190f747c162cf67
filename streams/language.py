"""Language detection, and words reduced to stems for search."""

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import filterfalse
from threading import Lock
from typing import Any, Literal

import numpy as np
import snowballstemmer
from numpy.typing import NDArray
from py3langid.langid import MODEL_DIR, MODEL_FILE, LanguageIdentifier
from py3langid.modelio import load_model
from stop_words import LANGUAGE_MAPPING, get_stop_words

UNDETERMINED = "und"
"""ISO 639-2 code of a text whose language cannot be detected."""

NAMES: dict[str, str] = {**LANGUAGE_MAPPING, "no": "norwegian"}
"""ISO 639-1 code → name in the stop-word and stemmer packages. Only these languages are candidates: short texts are
recognized better among few (with all 139 of the model, "yes please" is Walloon)."""

MIN_CONFIDENCE = 0.2
"""Probability; a text without any evidence has 1/32."""
PLAUSIBLE_CONFIDENCE = 0.02
"""Probability below which a language is ruled out; a text without any evidence rules out none."""
LONGEST_STEMMED = 100
"""Letters; a longer string is no word, and a stemmer's time grows with the square of the length."""
STEMS = 16_384
"""Stems that are kept, 4 MB of them: a million words of dialogues have 15,000 different ones."""
DETECTED_CHARACTERS = 4000
"""Characters used for detection, whose time grows with the length."""

ENGLISH_STOP_WORDS = """
i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers herself it its
itself they them their theirs themselves what which who whom this that these those am is are was were be been being have
has had having do does did doing would should could ought might must shall will can cannot may a an the and but if or
because as until while of at by for with about against between into through during before after above below to from up
down in out on off over under again further then once here there when where why how all any both each few more most
other some such no nor not only own same so than too very s t d m ll re ve don isn aren wasn weren hasn haven hadn doesn
didn won wouldn shan shouldn couldn mustn let
"""
"""Snowball's list, with contractions split. The 1,300 English ones of the stop-words package include "order", "room",
"problem" and "microsoft", which people search for."""

# Scripts without spaces: a run of these characters is split into overlapping pairs (as in Lucene's
# CJKAnalyzer). Thai, Lao, Myanmar, Khmer, Hiragana, Katakana, and the Han ideographs.
_UNSPACED = (
    r"\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ebd\u0ec0-\u0ece\u1000-\u103f\u1050-\u108f\u1780-\u17d3"
    r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0002ebef"
)
_UNSPACED_RUN = re.compile(rf"[{_UNSPACED}]+")
_ASCII_WORD = re.compile(r"[a-z0-9]+")
"""Equal to the general pattern for case-folded ASCII, and several times as fast."""
_MARK_CODES = range(0x300, 0x1F000)
"""Range of all marks that belong to words; searching all of Unicode takes 0.2 s."""
LONGEST_MARKS = 30
"""Non-starters in a row: the Stream-Safe Text Format, UAX #15, section 13; no writing system needs more."""
_JOINER = "\u034f"
"""COMBINING GRAPHEME JOINER: a mark that ends such a run and is never seen."""
_LOADING = Lock()
_KINDS_OF_BYTES = (
    b" abcdefghijklmnopqrstuvwxyz",
    bytes(byte for byte in range(128) if byte not in b" abcdefghijklmnopqrstuvwxyz"),
    bytes(range(0x80, 0xC0)),
    bytes(range(0xC0, 0x100)),
)
"""All bytes, of which most texts have the first the most: small letters, the rest of ASCII, continuations of UTF-8, and
its first bytes."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_PIECES = 64
"""Pieces of a large table that are computed with one after the other, so that nothing large is allocated."""
_VARIATION_SELECTORS = range(0xFE00, 0xFE10)
"""Marks that only select the look of a character, so they are no part of a word."""


def detect(text: str) -> str:
    """Detect the language: an ISO 639-1 code, or `und`. Deterministic; about 0.2 ms."""
    code, confidence = _ranked(text[:DETECTED_CHARACTERS])[0]
    return code if confidence >= MIN_CONFIDENCE else UNDETERMINED


def plausible(text: str) -> tuple[str, ...]:
    """List the languages that the text may be in, most likely first: one or two for a sentence, many for a single word.

    Starts with `und` where `detect` returns it.
    """
    ranked = _ranked(text[:DETECTED_CHARACTERS])
    likely = tuple(code for code, confidence in ranked if confidence >= PLAUSIBLE_CONFIDENCE)
    return (UNDETERMINED, *likely) if ranked[0][1] < MIN_CONFIDENCE else likely


def normalized(form: Literal["NFKC", "NFKD"], text: str) -> str:
    """Normalize in time linear in the length, with a joiner after every LONGEST_MARKS combining marks in a row.

    Normalization sorts each run of marks, in time that grows with the square of its length, and holds the GIL.
    """
    if text.isascii():
        return text
    return unicodedata.normalize(form, _marks_in_a_row().sub(rf"\g<0>{_JOINER}", text))


def words(text: str) -> list[str]:
    """Split a text into words, NFKC-normalized and case-folded; scripts without spaces become character pairs."""
    text = normalized("NFKC", text).casefold()
    return _ASCII_WORD.findall(text) if text.isascii() else list(_split(text))


def stem_words(text: str, language: str) -> list[str]:
    """Split a text into words in order, drop the language's stop words and reduce the rest to stems (Snowball).

    Words of a language without stop words or stemmer stay unchanged.
    """
    return stems(words(text), language)


def stems(words: Iterable[str], language: str) -> list[str]:
    """Drop stop words and reduce the rest to stems; `words` as from the function `words`."""
    return [found for word in words if (found := stem(word, language)) is not None]


def stem(word: str, language: str) -> str | None:
    """Reduce a word to its stem; None for a stop word."""
    if len(word) > LONGEST_STEMMED:
        return word
    return _stem(word, language)


def is_common(word: str, language: str) -> bool:
    """True for a word in the stop-words package's list, which is long for English."""
    return word.casefold() in _common_words(language)


def _split(text: str) -> Iterator[str]:
    for word in _word_pattern().findall(text):
        if len(word) > 1 and _UNSPACED_RUN.fullmatch(word):
            yield from (word[i : i + 2] for i in range(len(word) - 1))
        else:
            yield word


@cache
def _marks_in_a_row() -> re.Pattern[str]:
    """Compile the pattern of LONGEST_MARKS non-starters in a row: characters whose decompositions are marks alone."""
    codes = filterfalse(range(0xAC00, 0xD7A4).__contains__, _MARK_CODES)  # Hangul syllables hold none
    apart = ((code, unicodedata.normalize("NFKD", chr(code))) for code in codes)
    marks = "".join(chr(code) for code, parts in apart if parts and all(map(unicodedata.combining, parts)))
    return re.compile(rf"[{marks}]{{{LONGEST_MARKS}}}")


@cache
def _word_pattern() -> re.Pattern[str]:
    r"""Compile the general pattern: marks, which `\w` lacks, continue a word (in Indic scripts, Hebrew, Arabic)."""
    codes = (chr(code) for code in _MARK_CODES if code not in _VARIATION_SELECTORS)
    found = (mark for mark in codes if unicodedata.category(mark) in ("Mn", "Mc"))
    marks = "".join(mark for mark in found if not _UNSPACED_RUN.match(mark))
    letters = rf"[^\W_{_UNSPACED}]"
    return re.compile(rf"[{_UNSPACED}]+|{letters}+(?:[{marks}]+{letters}*)*")


@lru_cache(maxsize=STEMS)
def _stem(word: str, language: str) -> str | None:
    if word in _stop_words(language):
        return None
    name = _stemmer_name(language)
    # a stemmer holds state, so each call makes its own, which takes 0.3 µs and is thread-safe
    return str(snowballstemmer.stemmer(name).stemWord(word)) if name else word


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
    """Rank the languages by probability, most likely first.

    Cached, because prompt, quality check and index ask for the same texts of an episode.
    """
    with _LOADING:  # otherwise each thread that needs it now would load it, at 0.7 s of CPU
        identifier = _identifier()
    ranked: Sequence[tuple[str, float]] = identifier.rank(text)
    return ranked


@cache
def _identifier() -> Any:
    """Make the library's identifier with our languages alone: it would keep the weights of all 142, 28 MB."""
    weights, priors, labels, moves, rows, features = load_model(MODEL_DIR / MODEL_FILE)
    ours = [column for column, label in enumerate(labels) if label in NAMES]
    automaton = _Automaton(np.asarray(moves, np.uint32).reshape(-1, 256), np.asarray(rows), features)
    return _Identifier(automaton, weights[:, ours], priors[ours], [labels[at] for at in ours])


class _Identifier(LanguageIdentifier):  # type: ignore[misc]
    """The library's identifier, with an automaton that takes a quarter of its memory."""

    __slots__ = ("_automaton",)

    def __init__(self, automaton: "_Automaton", weights: Any, priors: Any, labels: Sequence[str]) -> None:
        super().__init__(weights, priors, labels, None, None, norm_probs=True, tk_row=())
        self._automaton = automaton

    def _raw_score(self, text: bytes) -> Any:
        visits = self._automaton.visits(text)
        return self._sparse_score(visits, self.nb_ptc) if visits else np.zeros(len(self.nb_classes), np.float32)


class _Automaton:
    """Counts the features of a text, as the library's `visit_counts` does.

    The library keeps a row of 256 moves for each state, 45 MB in all. Here a row is cut in four, by kinds of bytes,
    equal parts are kept once, and bytes that are in no feature share a column: 14 MB, for a sixth more time.
    """

    def __init__(self, moves: NDArray[Any], rows: NDArray[Any], features: Sequence[int]) -> None:
        """`moves`: the next state by row and byte; `rows`, `features`: of each state; −1 is no feature."""
        pieces = np.array_split(moves, _PIECES)
        unused = np.logical_and.reduce([(piece == piece[:, :1]).all(axis=0) for piece in pieces])
        columns = [[byte for byte in kind if byte == 0 or not unused[byte]] for kind in _KINDS_OF_BYTES]
        order = [byte for kind in columns for byte in kind]
        self._columns = bytes(order.index(0 if unused[byte] else byte) for byte in range(256))
        self._ends = [sum(map(len, columns[:count])) for count in (1, 2, 3)]
        """Columns at which the second kind of bytes begins, the third and the fourth."""
        self._moves = array("I")
        self._starts: list[list[int]] = []
        """Start of each state's moves, by kind of byte, less the number of the kind's first column."""
        self._features = features
        known: dict[int, int] = {}
        for first, kind in zip((0, *self._ends), columns, strict=True):
            parts, which = _distinct_rows(moves, kind)
            starts = (len(self._moves) - first + which * len(kind))[rows].tolist()
            self._starts.append([known.setdefault(start, start) for start in starts])  # equal ones as one object
            self._moves.frombytes(parts.tobytes())

    def visits(self, text: bytes) -> Counter[int]:
        """Count each feature, in the order in which they first occur."""
        moves, features, (small, ascii_, continued, begun) = self._moves, self._features, self._starts
        second, third, fourth = self._ends
        found: list[int] = []
        append, state = found.append, 0
        for column in text.translate(self._columns):
            starts = small if column < second else ascii_ if column < third else continued if column < fourth else begun
            state = moves[starts[state] + column]
            feature = features[state]
            if feature >= 0:
                append(feature)
        return Counter(found)


def _distinct_rows(table: NDArray[Any], columns: Sequence[int]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rows that differ in these columns, with these alone, and which of them each row is."""
    factors = np.multiply.accumulate(np.full(len(columns), _MULTIPLIER))
    pieces = np.array_split(table, _PIECES)
    # sorting the rows themselves would take five times as long
    hashes = np.concatenate([piece[:, columns] @ factors for piece in pieces])
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    rows = table[first][:, columns]
    for piece, found in zip(pieces, np.array_split(which, _PIECES), strict=True):
        if not np.array_equal(rows[found], piece[:, columns]):
            raise ValueError("two rows have the same hash")
    return rows, which
