"""The chat's answers without an LLM: what was said, who said it and when, or that nothing is known. Pure."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import chain
from typing import NamedTuple, Self

from afterword.reading.profile import KnownFact, Profile, answering
from afterword.reading.search import QUESTION_MARKS
from afterword.schemas import MessageCreated
from afterword.schemas.messages import Role
from afterword.serving.page.rendering import brief
from afterword.streams.stores.episodes import FactOfUser
from afterword.streams.stores.index import Recalled
from afterword_text.language import VOCABULARY, query_words
from afterword_text.statements import first_person
from afterword_text.word_model import GENERAL, asked_of_user

NOTHING = "I know nothing about that yet."
NOTHING_CHANGED = "I know of nothing that has changed."
UNSURE, UNSURE_BELOW = "I am not sure. The nearest that I know:\n\n", 0.3
"""Is put before hits of which the best has a lower score than this."""
NOTED = "Noted. Ask me about it, here or in another conversation."
MOST, MOST_OF_A_TIME = 3, 8
"""Maximum number of messages in an answer, and in one about a time or about everything."""
NEARLY = 0.75
"""Hits with a lower share of the best score are left out."""
SHOWN_CHARACTERS = 300

ASKS_WHAT_CHANGED, ASKS_WHO, _QUESTION = (
    re.compile(rf"\W*(?:{pattern})(?!\w)".replace("\n", ""), re.IGNORECASE)
    for pattern in (*VOCABULARY["chat"].values(), VOCABULARY["first_person"]["pieces"]["question"])
)


class Said(NamedTuple):
    """A message that may answer a question."""

    message_id: str
    role: Role
    author: str
    """Id of the user who wrote it."""
    name: str
    content: str
    sent_at: datetime
    title: str = ""
    """The title of the episode; empty in the current conversation."""

    @classmethod
    def of(cls, message: MessageCreated, now: datetime) -> Self:
        name = message.author or message.user_id
        return cls(message.id, message.role, message.user_id, name, message.content, message.sent_at or now)


def asks_something(text: str) -> bool:
    return text.rstrip().endswith(QUESTION_MARKS) or bool(_QUESTION.match(text)) or asked_of_user(text) is not None


def without_who(question: str, messages: Sequence[MessageCreated]) -> str:
    """Return a question, or the last one before it if it only asks who said that; "" without one."""
    asked = [each.content for each in messages if each.role == "user" and asks_something(each.content)]
    return next((text for text in (question, *reversed(asked)) if not ASKS_WHO.fullmatch(text.rstrip("?!. "))), "")


def said_here(question: str, messages: Sequence[MessageCreated], known: Profile, now: datetime) -> list[Said]:
    """Return the messages that state what is asked about the user; else the last one that has most of the question's
    words, at least half of them. For a question about the user as such, return the last messages.
    """
    stating = _stating(*known.facts, *known.superseded)
    told = (
        each for each in messages if each.role == "user" and (each.id in stating or not asks_something(each.content))
    )
    said = [Said.of(each, now) for each in told]
    if thing := asked_of_user(question):
        said = [each for each in said if each.author == known.user_id]
    if thing == GENERAL:
        return said[-MOST_OF_A_TIME:]
    if len(stated := as_it_is_now(said, question, known)) < len(said):
        return stated
    wanted = [set(word.forms) for word in query_words(question) if not word.is_common]
    shares = []
    for each in said:
        forms = {form for word in query_words(each.content) for form in word.forms}
        shares.append(sum(not forms.isdisjoint(word) for word in wanted))
    best = max(shares, default=0)
    return (
        [said[max(at for at, share in enumerate(shares) if share == best)]] if 2 * best >= max(len(wanted), 1) else []
    )


def said_in(question: str, hits: Sequence[Recalled], known: Profile) -> list[Said]:
    """Return the messages of a recall that answer the question, the best ones first."""
    statements: list[Said] = []
    stating = _stating(*known.facts, *known.superseded)
    names_one_thing = asked_of_user(question) not in (None, GENERAL)
    for hit in hits[: 1 if names_one_thing else None]:
        told = [
            match
            for match in hit.matches
            if match.role == "user" and (match.message_id in stating or not asks_something(match.content))
        ]
        told = told or [match for match in hit.matches if match.role == "assistant"]
        if not told or told[0].score < hit.scores.message:
            continue  # what matches is somebody else's, and not shown
        is_of_time = not names_one_thing and not any(share for _, share in hit.scores)
        if not is_of_time:  # what corrects the best message has its score
            told = [match for match in told if hit.score >= NEARLY * hits[0].score and match.score == told[0].score][:2]
        statements += [
            Said(match.message_id, match.role, author, match.name or author, match.content, match.sent_at, hit.title)
            for match in told
            for author in [match.author or ""]
        ]
        if len(statements) >= (MOST_OF_A_TIME if is_of_time else MOST):
            break
    return statements


def facts_in(
    messages: Sequence[MessageCreated], user_id: str, now: datetime, known: Profile | None = None
) -> list[FactOfUser]:
    """Return what a user says of themselves in a conversation, in messages from which nothing is known yet."""
    stating = _stating(*known.facts, *known.superseded) if known else set()
    said_at = {each.id: each.sent_at or now for each in messages}
    return [
        FactOfUser(*fact[:5], "user", "", "", place, fact.message_ids, said_at[fact.message_ids[0]])
        for place, fact in enumerate(first_person(messages))  # type: ignore[arg-type]  # a time may be absent
        if fact.user_id == user_id and stating.isdisjoint(fact.message_ids)
    ]


def _stating(*facts: KnownFact) -> set[str]:
    """Return the ids of the messages that say so. They may ask something, too."""
    return {each for fact in facts for source in fact.sources for each in source.message_ids}


def as_it_is_now(said: list[Said], question: str, known: Profile) -> list[Said]:
    """Keep only what tells how it is now, if the profile tells what a question asks about the user."""
    thing = asked_of_user(question)
    if thing == GENERAL:
        ended = _stating(*known.superseded) - _stating(*known.facts)
        return [each for each in said if each.message_id not in ended]
    told = answering(thing, known.facts, by_name=True) if thing else {}
    stating = set(chain.from_iterable(told.values()))
    return [each for each in said if each.message_id in stating] or said


def answer_of(said: Iterable[Said], asker: str, now: datetime, *, names_speaker: bool = False) -> str:
    """Quote messages, each once and in the order of their times. Days are those of the zone of `now`."""
    lines = {}
    for each in sorted(said, key=lambda each: each.sent_at):
        text = brief(each.content, SHOWN_CHARACTERS)
        at = each.sent_at.astimezone(now.tzinfo)
        is_own = each.role == "user" and each.author == asker
        who = "You" if is_own else "I" if each.role == "assistant" else each.name
        if names_speaker:
            place = f"in “{each.title}”" if each.title else "in this conversation"
            lines[each.message_id] = f"{who} did, {day_of(at, now)} at {at:%H:%M}, {place}: {text}"
        else:
            lines[each.message_id] = f"{who} {'told me' if is_own else 'said'} {day_of(at, now)}: {text}"
    return "\n\n".join(lines.values()) or NOTHING


def changes_in(profile: Profile, now: datetime, *, names_speaker: bool) -> str:
    """List what the user said anew, and what they had said before."""
    said = "You did," if names_speaker else "You told me"
    lines = [
        f"{said} {day_of(fact.superseded_at.astimezone(now.tzinfo), now)}: {_sentence(fact.superseded_by or '')} "
        f"Before that, {day_of(fact.sources[0].ended_at.astimezone(now.tzinfo), now)}: {fact.statement}"
        for fact in profile.superseded[:MOST_OF_A_TIME]
        if fact.superseded_at
    ]
    return "\n\n".join(lines) or NOTHING_CHANGED


def _sentence(text: str) -> str:
    return text if text.endswith(tuple(".!?…")) else f"{text}."


def day_of(at: datetime, now: datetime) -> str:
    if at.date() == now.date():
        return "today"
    return f"on {at.day} {at:%B}" + (f" {at.year}" if at.year != now.year else "")
