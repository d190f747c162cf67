"""Finds facts without an LLM: sentences in which users say something lasting about themselves.

It prefers precision to recall. A rule is a pattern for the beginning of a sentence. The sentence's language need not be
known, because no rule fits a sentence in another language.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

from afterword.schemas import EpisodeMessage, Fact, FactKind
from afterword.streams.summarizer.extractive.ranking import is_question
from afterword.streams.text.prose import sentences_of
from afterword.streams.text.vocabulary import VOCABULARY

MOST_FACTS = 40
"""Only this many of an episode's facts are kept, the last ones."""
STATEMENT_CHARACTERS = 200
"""A longer sentence says more than one thing."""
_NAMED_GROUP = re.compile(r"\(\?P<\w+>")


class Rule(NamedTuple):
    """The meaning of a sentence with this beginning."""

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
_ANY_RULE = re.compile(
    f"{_LEAD_IN}(?:{'|'.join(_NAMED_GROUP.sub('(?:', rule.pattern.pattern.removeprefix(_LEAD_IN)) for rule in RULES)})",
    re.IGNORECASE,
)
"""Matches if a rule does: most sentences fit none, and are read once."""


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
    if is_question(sentence) or not _ANY_RULE.match(sentence):
        return None
    for rule in RULES:
        if fits := rule.pattern.match(sentence):
            named = fits.groupdict()
            name = named.get("attribute") or (f"plan {named['plan']}" if "plan" in named else rule.attribute)
            return rule.kind, name and re.sub(r"\W+", "_", name.casefold()).strip("_")
    return None
