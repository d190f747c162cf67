"""Whether a message corrects an earlier one: "no, Thursday", "I misread that", "doch nicht", or another value alone."""

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from enum import IntEnum
from functools import cache
from typing import NamedTuple, Self

from afterword_text.language import VOCABULARY, names_of_days, normalized, pattern, stem, stem_words

READ_CHARACTERS = 400
"""How much of a message is read. A correction comes first."""
MOST_WORDS = 40
"""A message with more words has a subject of its own."""
ALIKE = 0.75
"""Minimum similarity of two names that differ in spelling, as difflib measures it."""

MOST_LANGUAGES = 3
"""Maximum number of languages, besides English, in which a correction of a message is looked for."""
LANGUAGES = tuple(VOCABULARY["corrections"])

_SENTENCE_ENDS = re.compile(r"(?<=[.!?…])\s+|\n")
_CLAUSE_ENDS = re.compile(r"(?<=[,:;–-])\s+")
_OWN, _EARLIER = (re.compile(rf"\W*(?:{pattern('subjects', whose)})(?!\w)") for whose in ("own", "earlier"))
_BETWEEN = r"[^.,;:?!]{1,40}"
"""What is said not to be so."""
_NUMBER = re.compile(r"\d+")
_NAME = re.compile(r"[^\W\d_]{4,}")


@cache
def _pattern(languages: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of a sentence that corrects, in any of these languages."""
    begins, holds = (
        "|".join(
            str(VOCABULARY["corrections"][code][part]).replace("\n", "").replace("@", _BETWEEN) for code in languages
        )
        for part in ("begins", "holds")
    )
    return re.compile(rf"^\W*(?:{begins})(?!\w)|(?<!\w)(?:{holds})(?!\w)")


def corrects(text: str, languages: tuple[str, ...] = LANGUAGES) -> bool:
    """Return whether a sentence at the beginning of the message has a correction's form. Questions have not."""
    sentences = _SENTENCE_ENDS.split(_folded(text))
    return any(_pattern(languages).search(sentence) for sentence in sentences if not sentence.rstrip().endswith("?"))


@cache
def _questions() -> list[re.Pattern[str]]:
    """Return, for each language, the pattern of a question for a value as it is now."""
    pieces = VOCABULARY["changes"].values()
    return [re.compile(rf"(?!.*\b(?:{each['but']})\b)\W*(?:{each['asks']})(?!\w)") for each in pieces]


@cache
def _change() -> re.Pattern[str]:
    said = "|".join(each["said"].replace("\n", "") for each in VOCABULARY["changes"].values())
    return re.compile(rf"(?<!\w)(?:{said})(?!\w)")


def asks_for_value(question: str) -> bool:
    """Return whether a question asks for a number, a time, a place or a name as it is now."""
    said = " ".join(_folded(question).split())
    return any(pattern.match(said) for pattern in _questions())


def changes(text: str) -> bool:
    """Return whether the beginning of a message says that something has changed."""
    return bool(_change().search(_folded(text)))


def _folded(text: str) -> str:
    return normalized("NFKC", text[:READ_CHARACTERS]).casefold().replace("’", "'")


class Likelihood(IntEnum):
    """How likely a message corrects an earlier one."""

    SAME_SUBJECT = 1
    OTHER_VALUE = 2
    """It gives another number or day, or a name in another spelling."""
    FORM = 3
    """It has a correction's form, and no subject of its own."""


def likelihoods(later: Iterable[str], earlier: str, languages: Sequence[str]) -> list[Likelihood | None]:
    """Return how likely later messages of a person correct an earlier one; None for those that do not.

    Neither do questions and long messages, nor what has a subject of its own ("my kids go to school"). If a question
    follows a correction ("sorry, Thursday. What shall I bring?"), it has to name another value.
    `languages` are those that the messages may be in, the most likely one first.
    """
    forms = tuple(code for code in LANGUAGES if code in languages[:MOST_LANGUAGES] or code == "en")
    before = _Values.of(earlier, languages[0])
    return [_likelihood(text, before, languages[0], forms) for text in later]


def _likelihood(text: str, before: "_Values", language: str, forms: tuple[str, ...]) -> Likelihood | None:
    if len(text.split()) > MOST_WORDS:
        return None
    said = _Values.of(text, language)
    shares, differs = not said.words.isdisjoint(before.words), said.differ(before)
    if text.rstrip().endswith("?"):
        return Likelihood.FORM if differs and corrects(text, forms) else None
    if corrects(text, forms):
        return Likelihood.FORM if shares or differs or not _has_own_subject(text, forms) else None
    if differs and (shares or said.is_only_value() or _EARLIER.match(_folded(text))):
        return Likelihood.OTHER_VALUE
    return Likelihood.SAME_SUBJECT if shares else None


def _has_own_subject(text: str, forms: tuple[str, ...]) -> bool:
    """Return whether a sentence, behind what makes it a correction, begins with the speaker or what is theirs."""
    for sentence in _SENTENCE_ENDS.split(_folded(text)):
        clauses = (clause for clause in _CLAUSE_ENDS.split(sentence) if " " in clause.strip())
        if _OWN.match(next((clause for clause in clauses if not _pattern(forms).search(clause)), "")):
            return True
    return False


class _Values(NamedTuple):
    """What a message says that another one may say otherwise."""

    numbers: frozenset[str]
    days: frozenset[str]
    """Names of weekdays and months."""
    names: frozenset[str]
    """Other words with a capital letter."""
    words: frozenset[str]
    """The stems of the words that it is about."""

    @classmethod
    def of(cls, text: str, language: str) -> Self:
        text = normalized("NFKC", text[:READ_CHARACTERS])
        capitalized = _NAME.findall(text)
        days = frozenset(map(str.casefold, capitalized)) & names_of_days()
        names = frozenset(
            word
            for word in capitalized
            if word[0].isupper() and word.casefold() not in days and stem(word.casefold(), language)
        )
        return cls(frozenset(_NUMBER.findall(text)), days, names, frozenset(stem_words(text, language)))

    def is_only_value(self) -> bool:
        """Return whether this is about nothing but numbers and days."""
        return len(self.words) <= len(self.numbers | self.days)

    def differ(self, earlier: Self) -> bool:
        """Return whether this gives another number as long, another day, or a name in another spelling."""
        if self.days and earlier.days and not self.days <= earlier.days:
            return True
        if {len(number) for number in self.numbers - earlier.numbers} & {len(number) for number in earlier.numbers}:
            return True
        return any(
            name[0] == other[0] and SequenceMatcher(None, name, other).ratio() >= ALIKE
            for name in self.names - earlier.names
            for other in earlier.names - self.names
        )
