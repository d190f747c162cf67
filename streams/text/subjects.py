"""What a short statement is about, compared without knowing its language."""

import re
import unicodedata
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import NamedTuple

from afterword.streams.text.language import VOCABULARY, is_common, normalized

LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "da")
"""Languages whose common words say nothing about a subject. A statement is in the one that has most of its words."""
SUBJECT_WORDS = 2
"""The person that a statement is about is among this many words."""
NAME_WEIGHT = 3
"""A name says more about what a statement is about than another word."""


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


@lru_cache(maxsize=4096)
def subject_of(statement: str) -> Subject:
    """Return what a statement is about."""
    table, people, ends = _topics()
    words: dict[str, int] = {}
    frame: dict[str, int] = {}
    topics: set[str] = set()
    others: set[str] = set()
    said = re.findall(r"[^\W\d_]{2,}|\d{3,}", statement)
    language = max(LANGUAGES, key=lambda one: sum(is_common(word, one) for word in said))
    for place, word in enumerate(said):
        key = word_key(word)
        if key in people and place < SUBJECT_WORDS:
            others.add(key)
        if key in ends:
            continue
        if topic := table.get(key):
            topics.add(topic)
            frame[key] = 1
        elif not is_common(word, language):
            words[key] = NAME_WEIGHT if word[0].isupper() and not statement.startswith(word) else 1
    return Subject(words or frame, frozenset(topics), frozenset(others), frozenset(frame))


def word_key(word: str) -> str:
    """Return the beginning of a word without accents and endings: "allergies" and "allergic" are one."""
    plain = "".join(one for one in normalized("NFKD", word.casefold()) if not unicodedata.combining(one))
    stem = re.sub(r"(?:ed|ing|er|[aeiouyns]+)$", "", plain)
    return (stem if len(stem) > 2 else plain)[:5]


@cache
def _topics() -> tuple[dict[str, str], frozenset[str], frozenset[str]]:
    """Return the topic of each word that says what is done with an object, and the words for people and for endings."""
    known = VOCABULARY["first_person"]
    topics = {word_key(word): topic for topic, words in known["topics"].items() for word in words.split()}
    return topics, _keys(known["others"]), _keys(known["end_words"])


def _keys(words: str) -> frozenset[str]:
    return frozenset(map(word_key, words.split()))
