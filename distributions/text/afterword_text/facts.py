"""Selects an episode's facts. Pure functions.

An LLM's facts are kept if the messages that it names as their sources state them. Without an LLM, `statements.py`
finds facts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from afterword_text.answer import StatedFact
from afterword_text.gate import BEGINNING, Evidence, ground
from afterword_text.gate.claims import ROLES, fold
from afterword_text.language import detect_all, stem_words
from afterword_text.messages import Message, PersonalFact
from afterword_text.statements import assertions, is_denial, own_texts, says_end
from afterword_text.subjects import subject_of

MACHINES = frozenset({"assistant", "agent", "bot", "chatbot", "ai", "system", "tool", "tools"})
"""Roles about which no fact is kept, because a profile is about people."""
MOST_CITED = 10
"""Maximum number of messages of a fact that are read, beginning with the first."""


class Source(NamedTuple):
    """Messages that may state a fact."""

    messages: Sequence[Message]
    texts: Sequence[str]
    user_id: str
    said_by: str


def grounded(stated: Iterable[StatedFact], messages: Sequence[Message]) -> tuple[PersonalFact, ...]:
    """Return the facts that the messages state, in message order, each once.

    A fact's figures, dates and names, and at least one more word, must be in the messages that it names. If the
    messages of one user suffice, the fact names only those. Linear in the messages, for each fact.
    """
    language = detect_all(message.content for message in messages)
    places = {message.id: place for place, message in enumerate(messages)}
    own = own_texts(messages)
    facts: dict[tuple[str, str], PersonalFact] = {}
    for statement in stated:
        numbers = sorted(set(statement.numbers))[:MOST_CITED]
        cited = [messages[number - 1] for number in numbers if 0 < number <= len(messages)]
        source = next((source for source in _sources(cited, own) if _says(source, statement, language)), None)
        if source is not None:
            fact = PersonalFact(
                statement=statement.statement,
                kind=statement.kind,
                attribute=statement.attribute,
                status="ended" if says_end(statement.statement) else "stated",
                about=_other_person(statement, source),
                user_id=source.user_id,
                said_by=source.said_by,
                message_ids=tuple(message.id for message in source.messages),
            )
            facts.setdefault((source.user_id, fold(statement.statement)), fact)
    return tuple(sorted(facts.values(), key=lambda fact: places[fact.message_ids[-1]]))


def _sources(cited: Sequence[Message], texts: Mapping[str, str]) -> Iterator[Source]:
    """Yield what each user asserts in their own words, the last speaker first.

    If assistants or tools also speak, then yield all messages together, attributed to the first of these speakers.
    """
    own = [message for message in cited if message.role == "user"]
    for user in dict.fromkeys(message.user_id for message in reversed(own)):
        said = [message for message in own if message.user_id == user]
        yield Source(said, [clause for message in said for clause in assertions(texts[message.id])], user, "user")
    others = [message for message in cited if message.role != "user"]
    if others:
        yield Source(cited, [message.content for message in cited], (own or others)[-1].user_id, others[0].role)


def _other_person(stated: StatedFact, source: Source) -> str | None:
    """Return whom a fact is about, if it is not the user who says it."""
    about = fold(stated.about).removeprefix("the ")
    own = {"", source.user_id, *(message.author or "" for message in source.messages)}
    return None if about in ROLES or about in map(fold, own) else stated.about


def _says(source: Source, stated: StatedFact, language: str) -> bool:
    if fold(stated.about).removeprefix("the ") in MACHINES:
        return False
    authors = (message.author for message in source.messages if message.author)
    sent_at = [message.sent_at for message in source.messages]
    evidence = Evidence("\n".join((*authors, *source.texts)), language, sent_at)
    person = _other_person(stated, source)
    text = f"{person}: {stated.statement}" if person else stated.statement
    if ground((text,), evidence, language).unsupported:
        return False
    if source.said_by == "user" and not person and _is_denied(source, stated):
        return False
    beginnings = {stem[:BEGINNING] for stem in evidence.stems}
    return any(stem[:BEGINNING] in beginnings for stem in stem_words(stated.statement, language))


def _is_denied(source: Source, stated: StatedFact) -> bool:
    """Return whether the clauses with all words of a fact deny it, or say it of somebody whom it does not name."""
    fact, first = subject_of(stated.statement), stated.statement.split()[0]
    clauses = [
        clause
        for clause in source.texts
        if fact.words.keys() <= subject_of(clause).words.keys() | subject_of(clause).verbs
    ]
    return bool(clauses) and all(
        (is_denial(clause) and not is_denial(stated.statement))
        or not (subject_of(clause).others <= fact.others or (first.istitle() and first in clause.split()[1:]))
        for clause in clauses
    )
