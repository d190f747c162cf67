"""Languages: detection, stems, the words of `vocabulary.toml`, where one file adds a language, and words for searches.

Searches compare words in all the forms in which people may write them: stems without accents and case, numbers without
separators, emoji, and single characters and pairs of scripts without spaces and of Korean, whose nouns carry particles.
Except for these particles, they follow Unicode's data, not a list of ours. The tokenizers of SQLite and Qdrant leave
"ł", "ı" and "đ" as they are, and have neither stems nor these numbers.
"""

import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from itertools import accumulate, chain, pairwise
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple

import mmh3
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
def names_of_days() -> frozenset[str]:
    """Return the names of weekdays and months, short ones too, in the languages of corrections and in lower case."""
    languages = map(date_words, VOCABULARY["corrections"])
    return frozenset(name.casefold() for info in languages for key in (*MONTHS, *WEEKDAYS) for name in info[key])


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

_SEARCHED_SINGLY = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Myanmar}\p{Khmer}\p{Hangul}"
_SEARCHED_LETTERS = rf"[[\p{{L}}\p{{N}}\p{{M}}]--[{_SEARCHED_SINGLY}]]+"
_TOKEN = regex.compile(
    rf"(?V1)(?P<number>\p{{Nd}}+(?:\)?[ .,'٫٬_/-]\(?\p{{Nd}}+){{0,{MOST_GROUPS - 1}}})(?!\p{{Nd}})"
    rf"|(?P<unspaced>[{_SEARCHED_SINGLY}][{_SEARCHED_SINGLY}\p{{M}}]*)"
    rf"|(?P<word>[[\p{{L}}\p{{M}}]--[{_SEARCHED_SINGLY}]]+(?=\p{{Nd}}{{2,}}(?![\p{{L}}\p{{N}}]))"
    rf"|{_SEARCHED_LETTERS}(?:[-._'&]{_SEARCHED_LETTERS}){{0,{MOST_PARTS - 1}}})"
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
_FOLDED_MARKS = str.maketrans({"‐": "-", "‑": "-", "‘": "'", "’": "'", "ʼ": "'", "ʻ": "'", "´": "'", "·": "."})
"""Hyphens, apostrophes and points that people write as one of ASCII. Some are letters to Unicode, as in "Hawaiʻi"."""
_NAMED_OTHERWISE = {"ð": "d", "þ": "th", "ة": "ه"}
_SPELLED_OUT = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ø": "oe", "å": "aa"})
"""How names with these letters are written on keyboards that lack them."""
_TALK = {
    language: {meaning: frozenset(said.split()) for meaning, said in of_talk.items()}
    for language, of_talk in VOCABULARY["talk"].items()
}
"""Words that ask what was said, by language and meaning."""
_SPOKEN = re.compile(r"""["][^"]*["]|[“„«][^“„«”»]*[“”»]|\w+|[^\w\s]""")
"""A quotation, a word, or a mark."""
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


def search_words(text: str, language: str) -> Iterator[Word]:
    """Yield the words of a searched text, in order, without stop words. Linear in the text that is read."""
    return _words(text, (language,), is_query=False)


def query_words(text: str) -> list[Word]:
    """Read the different words of a query, each in every language that the query may be in.

    Few words do not tell their language, so they are read in those of DOCUMENTED, too.
    """
    likely = plausible(text)[:LIKELY_LANGUAGES]
    languages = tuple(dict.fromkeys((*likely, *DOCUMENTED))) if len(text.split()) <= FEW_WORDS else likely
    return list(dict.fromkeys(_words(text, languages, is_query=True)))


def subject_of(question: str) -> str:
    """Return a question without the words that only ask what was said: "what did I tell you about my sister?".

    With them go words for the form of the answer, such as "list", but not of what is quoted or the user's own, as "my
    pizza order". If nothing else is left, the question stays whole.
    """
    languages = [language for language in plausible(question)[:LIKELY_LANGUAGES] if language in _TALK]
    kinds = "told", "form", "own"
    told, form, own = (frozenset().union(*(_TALK[code][kind] for code in languages)) for kind in kinds)
    if told.isdisjoint(words(question)):
        return question
    is_own = False

    def shown(part: re.Match[str]) -> str:
        nonlocal is_own
        word = part[0].casefold()
        is_own = word in own or (is_own and word.isalpha() and all(word not in stop_words(code) for code in languages))
        return "" if word in told or (word in form and not is_own) else part[0]

    rest = _SPOKEN.sub(shown, question)
    return rest if any(not word.is_common for word in query_words(rest)) else question


def hashed(forms: Iterable[str]) -> list[int]:
    """Return the numbers that stand for forms in an index: 32 bits, never 0 or 1."""
    return [max(mmh3.hash(form, signed=False), 2) for form in forms]


def _words(text: str, languages: tuple[str, ...], is_query: bool) -> Iterator[Word]:
    text = normalized("NFKC", text.translate(_FOLDED_MARKS)).casefold()
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
    kept = []
    for part in parts:
        stems = [_forms(part, language) for language in languages]
        if any(stems):
            kept.append(Word(tuple(dict.fromkeys(chain(*stems, whole))), not all(stems)))
            whole = whole if is_query else []
    if not kept and "&" in said:  # "AT&T" consists of stop words
        kept = [Word((form,)) for form in whole[:1]]
    return tuple(kept)


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
