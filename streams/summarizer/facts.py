"""Selects an episode's facts. Pure functions.

An LLM's facts are kept if the messages that it names as their sources state them (`grounded`). Without an LLM, facts
are the sentences in which users say something lasting about themselves (`first_person`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, cast

from afterword.schemas import EpisodeMessage, Fact, FactKind
from afterword.schemas.messages import Role
from afterword.streams.summarizer.answer import StatedFact
from afterword.streams.summarizer.extractive.ranking import is_question
from afterword.streams.summarizer.quality import BEGINNING, Evidence, ground
from afterword.streams.summarizer.quality.facts import ROLES, fold
from afterword.streams.text.language import VOCABULARY, detect_all, stem_words
from afterword.streams.text.sentences import sentences_of

MACHINES = frozenset({"assistant", "agent", "bot", "chatbot", "ai", "system", "tool", "tools"})
"""Roles about which no fact is kept, because a profile is about people."""
MOST_CITED = 10
"""Maximum number of messages of a fact that are read, beginning with the first."""
MOST_FACTS = 40
"""Without an LLM, only this many of an episode's facts are kept, the last ones."""
STATEMENT_CHARACTERS = 200
"""A longer sentence says more than one thing."""


class Source(NamedTuple):
    """Messages that may state a fact."""

    messages: Sequence[EpisodeMessage]
    texts: Sequence[str]
    user_id: str
    said_by: Role


def grounded(stated: Iterable[StatedFact], messages: Sequence[EpisodeMessage]) -> tuple[Fact, ...]:
    """Return the facts that the messages state, in message order, each once.

    A fact's figures, dates and names, and at least one more word, must be in the messages that it names. If the
    messages of one user suffice, the fact names only those. Linear in the messages, for each fact.
    """
    language = detect_all(message.content for message in messages)
    places = {message.id: place for place, message in enumerate(messages)}
    found: dict[tuple[str, str], Fact] = {}
    for one in stated:
        numbers = sorted(set(one.numbers))[:MOST_CITED]
        cited = [messages[number - 1] for number in numbers if 0 < number <= len(messages)]
        source = next((source for source in _sources(cited) if _says(source, one, language)), None)
        if source is not None:
            fact = Fact(
                statement=one.statement,
                kind=one.kind,
                attribute=one.attribute,
                about=_other_person(one, source),
                user_id=source.user_id,
                said_by=source.said_by,
                message_ids=tuple(message.id for message in source.messages),
            )
            found.setdefault((source.user_id, fold(one.statement)), fact)
    return tuple(sorted(found.values(), key=lambda fact: places[fact.message_ids[-1]]))


def _sources(cited: Sequence[EpisodeMessage]) -> Iterator[Source]:
    """Yield what each user says, the last speaker first, without questions.

    If assistants or tools also speak, then yield all messages together, attributed to the first of these speakers.
    """
    own = [message for message in cited if message.role == "user"]
    for user in dict.fromkeys(message.user_id for message in reversed(own)):
        said = [message for message in own if message.user_id == user]
        sentences = (sentence for message in said for sentence in sentences_of(message.content))
        yield Source(said, [" ".join(one for one in sentences if not is_question(one))], user, "user")
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
    beginnings = {stem[:BEGINNING] for stem in evidence.stems}
    return any(stem[:BEGINNING] in beginnings for stem in stem_words(stated.statement, language))


class Rule(NamedTuple):
    """What a sentence with this beginning says about its speaker.

    Rules prefer precision to recall. The sentence's language need not be known, because no rule fits a sentence in
    another language.
    """

    kind: FactKind
    attribute: str | None
    """Name of the attribute, unless the pattern's group `attribute` or `plan` contains it."""
    pattern: re.Pattern[str]


def _with_pieces(pattern: str) -> str:
    """Replace the names of pieces in braces; pieces may consist of others."""
    pieces = VOCABULARY["first_person"]["pieces"]
    return re.sub(r"\{([a-z_]+)\}", lambda found: _with_pieces(pieces[found[1]].replace("\n", "")), pattern)


def _rules() -> Iterator[Rule]:
    for line in re.sub(r"\n +", "", VOCABULARY["first_person"]["rules"]).splitlines():
        if not line.startswith("#"):
            kind, attribute, pattern = line.split(None, 2)
            compiled = re.compile(_LEAD_IN + f"(?:{_with_pieces(pattern)})", re.IGNORECASE)
            yield Rule(cast("FactKind", kind), None if attribute == "-" else attribute, compiled)


_LEAD_IN = _with_pieces("{lead_in}")
RULES = tuple(_rules())


def first_person(messages: Sequence[EpisodeMessage]) -> tuple[Fact, ...]:
    """Return the users' sentences that a rule fits, whole, in order and each once. Linear in the messages."""
    found: dict[tuple[str, str], Fact] = {}
    for message in messages:
        for sentence in sentences_of(message.content) if message.role == "user" else ():
            if len(sentence) <= STATEMENT_CHARACTERS and (read := kind_of(sentence)):
                kind, attribute = read
                fact = Fact(
                    statement=sentence,
                    kind=kind,
                    attribute=attribute,
                    user_id=message.user_id,
                    said_by="user",
                    message_ids=(message.id,),
                )
                found.setdefault((fact.user_id, fact.statement.casefold()), fact)
    return tuple(found.values())[-MOST_FACTS:]


def kind_of(sentence: str) -> tuple[FactKind, str | None] | None:
    """Return the kind and attribute of a statement about oneself; None if the sentence says nothing lasting."""
    for rule in () if is_question(sentence) else RULES:
        if fits := rule.pattern.match(sentence):
            named = fits.groupdict()
            name = named.get("attribute") or (f"plan {named['plan']}" if "plan" in named else rule.attribute)
            return rule.kind, name and re.sub(r"\W+", "_", name.casefold()).strip("_")
    return None
