"""Recognizes questions about the user as such: "what do you know about me?", "what's my name?". Pure."""

import re
from collections.abc import Sequence, Set
from itertools import chain

from afterword.reading.profile import KnownFact
from afterword_text.language import VOCABULARY, normalized
from afterword_text.word_model import probabilities

MOST_CHARACTERS = 160
"""A longer question has a subject of its own."""

_PATTERNS = {
    thing: re.compile(rf"(?<!\w)(?:{said})(?!\w)".replace("\n", ""))
    for thing, said in VOCABULARY["about_user"]["questions"].items()
}
_ASKED: dict[str, frozenset[str]] = {
    thing: frozenset(names.split()) for thing, names in VOCABULARY["about_user"]["asked"].items()
}
"""The attributes and kinds of facts that answer a question about one thing."""
GENERAL = "general"
QUESTIONS = GENERAL, "name", "home", "work", "age", "health", "-"
"""What the model tells apart. The last is every other question."""
CERTAIN = 0.6
"""Least probability of what a question asks, chosen on questions that the model had not seen."""


def asked_of_user(question: str) -> str | None:
    """Return what a question asks about the user: GENERAL, or the name of one thing; None if it asks about others."""
    text = _folded(question)
    if len(text) > MOST_CHARACTERS:
        return None
    if thing := asked_in_known_words(text):
        return thing
    asked = probabilities("questions", text)
    return QUESTIONS[int(asked.argmax())] if asked[:-1].max() >= CERTAIN else None


def asked_in_known_words(question: str) -> str | None:
    """Return the same if a phrase of the vocabulary tells it."""
    text = _folded(question)
    return next((thing for thing, pattern in _PATTERNS.items() if pattern.search(text)), None)


def _folded(question: str) -> str:
    return " ".join(normalized("NFKC", question[: MOST_CHARACTERS + 1]).lower().replace("’", "'").split())


def answering(thing: str, known: Sequence[KnownFact], *, by_name: bool = False) -> dict[str, list[str]]:
    """Return the messages that state the facts which are asked for, by episode, in the order of the profile.

    With `by_name`, only those facts count whose attribute is asked for: others of their kind may say anything.
    """
    wanted = _ASKED.get(thing)
    facts = [each for each in known if wanted is None or _answers(each, wanted, by_name)]
    by_episode: dict[str, list[str]] = {}
    for source in chain.from_iterable(fact.sources[:1] for fact in facts):
        messages = by_episode.setdefault(source.episode_id, [])
        messages += (each for each in source.message_ids if each not in messages)
    return by_episode


def _answers(fact: KnownFact, wanted: Set[str], by_name: bool) -> bool:
    if fact.about:
        return False
    names = {fact.attribute, *fact.other_attributes}
    return not wanted.isdisjoint(names) or (not by_name and fact.kind in wanted)
