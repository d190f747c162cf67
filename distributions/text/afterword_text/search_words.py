"""The words of a text as searches compare them, in all the forms in which people may write them.

Forms are stems without accents and case, numbers without separators, emoji, and single characters and pairs of scripts
without spaces and of Korean, whose nouns carry particles. Except for these particles, they follow Unicode's data, not a
list of ours. The tokenizers of SQLite and Qdrant leave "ł", "ı" and "đ" as they are, and have neither stems nor these
numbers.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import mmh3
import regex

from afterword_text.language import LONGEST_STEMMED, STEMS, normalized, plausible, stem, word_set

MOST_GROUPS = 8
"""Maximum number of groups of digits that are read as one number."""
LIKELY_LANGUAGES = 8
"""Maximum number of languages in which a query's words are stemmed. A single word is plausible in dozens, each of which
has a list of stop words to load."""
DOCUMENTED = ("en", "de", "fr", "es", "pt", "it", "nl", "da")
"""The languages in which this project's rules for texts are written."""
FEW_WORDS = 2
MOST_PARTS = 4
"""Maximum number of parts of a word that are joined by hyphens, points, underscores, apostrophes or ampersands."""

_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Myanmar}\p{Khmer}\p{Hangul}"
_LETTERS = rf"[[\p{{L}}\p{{N}}\p{{M}}]--[{_UNSPACED}]]+"
_TOKEN = regex.compile(
    rf"(?V1)(?P<number>\p{{Nd}}+(?:\)?[ .,'٫٬_/-]\(?\p{{Nd}}+){{0,{MOST_GROUPS - 1}}})(?!\p{{Nd}})"
    rf"|(?P<unspaced>[{_UNSPACED}][{_UNSPACED}\p{{M}}]*)"
    rf"|(?P<word>[[\p{{L}}\p{{M}}]--[{_UNSPACED}]]+(?=\p{{Nd}}{{2,}}(?![\p{{L}}\p{{N}}]))"
    rf"|{_LETTERS}(?:[-._'&]{_LETTERS}){{0,{MOST_PARTS - 1}}})"
    r"|(?P<symbol>\p{Extended_Pictographic}|\p{Regional_Indicator}{2}|\p{So}|\p{Sc})"
)
_ASCII_TOKEN = re.compile(
    rf"(?P<number>\d+(?:\)?[ .,'_/-]\(?\d+){{0,{MOST_GROUPS - 1}}})(?!\d)"
    rf"|(?P<word>[a-z]+(?=\d{{2,}}(?![a-z\d]))|[a-z\d]+(?:[-._'&][a-z\d]+){{0,{MOST_PARTS - 1}}})"
    r"|(?P<symbol>\$)"
)
"""Equivalent to the general pattern for case-folded ASCII, and ten times as fast."""
_GROUPED = regex.compile(r"\d{1,3}(?:(?P<mark>[ .,'٬_])\d{2,3})(?:(?P=mark)\d{2,3})*(?:[.,٫]\d{1,2})?")
"""A number with digits in groups of three, or of two as in India."""
_PARTICLE = regex.compile(rf"(?<=^\p{{Hangul}}{{2,}})(?:{'|'.join(word_set('search', 'korean_particles'))})$")
"""A particle after a noun of at least two syllables. The search from the left finds the longest."""
_DIGITS = regex.compile(r"\d+")
_JOINTS = regex.compile(r"[-._'&]|(?<=\p{L})(?=\p{Nd}{2,}(?![\p{L}\p{N}]))")
"""Where words are split: "covid-19", "node.js", "O'Neill", "BA2490". "h1" and "v2" stay whole: their digit alone says
nothing."""
_MARKS = str.maketrans({"‐": "-", "‑": "-", "‘": "'", "’": "'", "ʼ": "'", "ʻ": "'", "´": "'", "·": "."})
"""Hyphens, apostrophes and points that people write as one of ASCII. Some are letters to Unicode, as in "Hawaiʻi"."""
_NAMED_OTHERWISE = {"ð": "d", "þ": "th", "ة": "ه"}
_SPELLED_OUT = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ø": "oe", "å": "aa"})
"""How names with these letters are written on keyboards that lack them."""
_LATIN = regex.compile(r"LATIN SMALL (?:LETTER|LIGATURE) (?:DOTLESS )?(?P<letters>[A-Z]{1,2})(?: WITH .*)?")
_SINGLE_MARKS = (range(1, 2), range(7, 8), range(10, 36), range(202, 241))
"""Combining classes of marks that people leave out: overlaid marks, nuktas, Hebrew and Arabic points, and marks above
or below a letter. Vowel signs, viramas and the voicing of kana have other classes."""


class Word(NamedTuple):
    forms: tuple[str, ...]
    is_common: bool = False
    """True if the word is a stop word in a language that the text may be in."""


class _Folding(dict[int, str]):
    """A table for `str.translate`, which replaces each letter with the letter without its accent."""

    def __missing__(self, code: int) -> str:
        parts = unicodedata.normalize("NFKD", chr(code))
        kept = [part for part in parts if not any(unicodedata.combining(part) in marks for marks in _SINGLE_MARKS)]
        folded = "".join(map(_base, kept if len(kept) < len(parts) else chr(code)))
        self[code] = folded
        return folded


def _base(character: str) -> str:
    match = _LATIN.fullmatch(unicodedata.name(character, ""))
    return match["letters"].lower() if match else _NAMED_OTHERWISE.get(character, character)


_FOLDING = _Folding()


def fold(text: str) -> str:
    """Remove the accents from a case-folded text: "łódź" becomes "lodz", and "ışık" becomes "isik"."""
    return text if text.isascii() else text.translate(_FOLDING)


def words_of(text: str, language: str) -> Iterator[Word]:
    """Yield the words of a searched text, in order, without stop words. Linear in the text that is read."""
    return _words(text, (language,), is_query=False)


def query_words(text: str) -> list[Word]:
    """Read the different words of a query, each in every language that the query may be in.

    Few words do not tell their language, so they are read in those of DOCUMENTED, too.
    """
    likely = plausible(text)[:LIKELY_LANGUAGES]
    languages = tuple(dict.fromkeys((*likely, *DOCUMENTED))) if len(text.split()) <= FEW_WORDS else likely
    return list(dict.fromkeys(_words(text, languages, is_query=True)))


def hashed(forms: Iterable[str]) -> list[int]:
    """Return the numbers that stand for forms in an index: 32 bits, never 0 or 1."""
    return [max(mmh3.hash(form, signed=False), 2) for form in forms]


def _words(text: str, languages: tuple[str, ...], is_query: bool) -> Iterator[Word]:
    text = normalized("NFKC", text.translate(_MARKS)).casefold()
    for token in (_ASCII_TOKEN if text.isascii() else _TOKEN).finditer(text):
        said = token[0]
        match token.lastgroup:
            case "number":
                yield from map(Word, _number_forms(said, is_query))
            case "unspaced":
                yield from map(Word, _character_forms(said, is_query))
            case "word" if len(said) <= LONGEST_STEMMED:
                yield from _known_forms(said, languages, is_query)
            case "word":
                yield from _word_forms(said, languages, is_query)
            case _:
                yield Word((said,))


def _word_forms(said: str, languages: tuple[str, ...], is_query: bool) -> tuple[Word, ...]:
    """Read a word, or the parts of one that is joined.

    In a query each part also stands for the whole word, in a text only the first.
    """
    parts = _JOINTS.split(said)
    whole = [form for language in languages for form in _forms("".join(parts), language)] if len(parts) > 1 else []
    search_words = []
    for part in parts:
        stems = [_forms(part, language) for language in languages]
        if any(stems):
            search_words.append(Word(tuple(dict.fromkeys(chain(*stems, whole))), not all(stems)))
            whole = whole if is_query else []
    if not search_words and "&" in said:  # "AT&T" consists of stop words
        search_words = [Word((form,)) for form in whole[:1]]
    return tuple(search_words)


_known_forms = lru_cache(maxsize=STEMS)(_word_forms)


def _forms(word: str, language: str) -> tuple[str, ...]:
    """Return the stem without accents, and the stems of the word without accents, which some stemmers need.

    Return nothing for a stop word.
    """
    if len(word) > LONGEST_STEMMED:
        return (fold(word),)
    stemmed = stem(word, language)
    if stemmed is None:
        return ()
    if word.isascii():
        return (stemmed,)
    plain = dict.fromkeys((fold(word), fold(word.translate(_SPELLED_OUT))))
    return (fold(stemmed), *(stem(written, spoken) or written for written in plain for spoken in (language, "en")))


def _number_forms(said: str, is_query: bool) -> Iterator[tuple[str, ...]]:
    """Read "12,500" as 12500, "1.250,00" as 1250 or 125000, and other groups of digits both separately and joined.

    They may be joined from the first group on or up to the last: a telephone number may lack its country code.
    """
    groups = ["".join(str(unicodedata.digit(digit)) for digit in group) for group in _DIGITS.findall(said)]
    joined = tuple(map(_plain, accumulate(groups)))[1:]
    if is_query and joined and _GROUPED.fullmatch(said):
        yield joined[-1:] if len(groups[-1]) == 3 else joined[::-1][:2]
        return
    for at, group in enumerate(groups):
        before = joined if is_query or at == 0 else ()
        yield tuple(dict.fromkeys((_plain(group), *before, _plain("".join(groups[at:])))))


def _plain(digits: str) -> str:
    return digits.lstrip("0") or "0"


def _character_forms(said: str, is_query: bool) -> Iterator[tuple[str, ...]]:
    """Read pairs of characters; a text also has each character alone, and so does a query of a single one.

    In a query, a Korean noun stands without its particle.
    """
    if is_query:
        said = _PARTICLE.sub("", said)
    letters = regex.findall(r"\X", said)
    pairs = [first + second for first, second in pairwise(letters)]
    if is_query:
        yield from ((pair,) for pair in pairs or letters)
    else:
        yield from ((letter, *pair) for letter, *pair in zip(letters, pairs, strict=False))
        yield (letters[-1],)
