"""What a short statement is about, compared without knowing its language."""

import re
import unicodedata
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import NamedTuple

from afterword_text.language import VOCABULARY, is_common, normalized

LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "da")
"""Languages whose common words say nothing about a subject. A statement is in the one that has most of its words."""
SUBJECT_WORDS = 2
"""The person that a statement is about is among this many words."""
NAME_WEIGHT = 3
"""A name says more about what a statement is about than another word."""
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+){2,}|[^\W\d_]{2,}|\d{3,}")
ONE = "1"
_NUMBERS = {
    word: str(number)
    for number, words in enumerate(VOCABULARY["first_person"]["numbers"].strip().splitlines(), 1)
    for word in words.split()
}
_NUMBER = re.compile(
    rf"(?:\b(?P<before>[^\W\d_]+) )?(?<!\w)(?P<number>\d+(?:[.,]\d+)*|{'|'.join(_NUMBERS)})\b(?: (?P<unit>[^\W\d_]+))?",
    re.IGNORECASE,
)
_BE = re.compile(r"\s+(?:is|are|was|were|has|have|got)\b")


class Subject(NamedTuple):
    """What a statement is about, in beginnings of words, so that its language need not be known."""

    words: Mapping[str, int]
    """Each word's weight, without words such as "eat" and "work" unless there are no others."""
    topics: frozenset[str]
    """The topics of such words: a dog that one no longer has does not end that one is allergic to dogs."""
    others: frozenset[str]
    """The people that it is about, such as "brother"."""
    verbs: frozenset[str]
    """The words that tell its topics."""
    heads: Mapping[str, str]
    """The word that another one only describes, as in "sold the Skoda's roof box"."""


@lru_cache(maxsize=4096)
def subject_of(statement: str) -> Subject:
    """Return what a statement is about."""
    known = _known_words()
    words: dict[str, int] = {}
    frame: dict[str, int] = {}
    topics: set[str] = set()
    others: set[str] = set()
    heads: dict[str, str] = {}
    says_end = False
    statement = known.compounds.sub(r"\1 \2", statement)
    matches = list(_WORD.finditer(statement))
    language = max(LANGUAGES, key=lambda candidate: sum(is_common(word[0], candidate) for word in matches))
    before, end = "", 0
    for place, (word, key) in enumerate((each[0], word_key(each[0])) for each in matches):
        is_common_word = is_common(word, language)
        gap, behind = statement[end : matches[place].start()], statement[matches[place].end() :]
        is_head = language == "en" and before in words and key not in known.no_heads and not is_common_word
        if is_head and gap in (" ", "'s ", "’s ") and (says_end or _BE.match(behind)):
            heads[before] = key
        before, end = key, matches[place].end()
        says_end |= key in known.verbs_with_objects
        if {word.casefold(), word.casefold().removesuffix("s")} & known.people[language] and place < SUBJECT_WORDS:
            others.add(key)
        if key in known.ends:
            continue
        if topic := known.topics.get(key):
            topics.add(topic)
            frame[key] = 1
        elif word.casefold() in known.loose:
            frame[key] = 1
        elif not is_common_word:
            is_name = word[0].isupper() and not statement.startswith(word) and key not in known.no_heads
            words[key] = NAME_WEIGHT if is_name else 1
    return Subject(words or frame, frozenset(topics), frozenset(others), frozenset(frame), heads)


@lru_cache(maxsize=4096)
def numbers_of(statement: str) -> dict[str, str]:
    """Return the numbers of a statement by what they count: "two cats" are {"cat": "2"}, "year 4" is {"year": "4"}."""
    return {
        word_key(found["unit"] or found["before"] or ""): _NUMBERS.get(found["number"].casefold(), found["number"])
        for found in _NUMBER.finditer(statement)
    }


def word_key(word: str) -> str:
    """Return the beginning of a word without accents and endings: "allergies" and "allergic" are one."""
    plain = "".join(
        character for character in normalized("NFKD", word.casefold()) if not unicodedata.combining(character)
    )
    stem = re.sub(r"(?:ed|(?:(?<=[^aeiou])y)?ing|er|[aeiouy]+[ns]*|[ns]+)$", "", plain)
    return (stem if len(stem) > 2 else plain)[:5]


class _Known(NamedTuple):
    """Words of the vocabulary, by their beginnings but for those for people."""

    topics: Mapping[str, str]
    ends: frozenset[str]
    compounds: re.Pattern[str]
    """Words of topics at the end of longer words, as in "Nussallergie"."""
    loose: frozenset[str]
    """Words that say when or how something is done, or that it has a name."""
    verbs_with_objects: frozenset[str]
    no_heads: frozenset[str]
    people: Mapping[str, frozenset[str]]


@cache
def _known_words() -> _Known:
    known = VOCABULARY["first_person"]
    topics = {word_key(word): topic for topic, words in known["topics"].items() for word in words.split()}
    ends, verbs = (_keys(known[name]) for name in ("end_words", "object_words"))
    loose = known["loose_words"]
    people = {language: frozenset(words.split()) for language, words in known["others"].items()}
    compounds = re.compile(rf"(\w\w\w)({'|'.join(known['compounds'].split())})\b", re.IGNORECASE)
    no_heads = ends | _keys(loose) | topics.keys()
    return _Known(topics, ends, compounds, frozenset(loose.split()), verbs, no_heads, people)


def _keys(words: str) -> frozenset[str]:
    return frozenset(map(word_key, words.split()))
