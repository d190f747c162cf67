"""Typical records, for tests that do not care about most of their fields."""

from datetime import UTC, datetime, timedelta
from typing import Any

from afterword.schemas import (
    Compression,
    ConversationAssigned,
    ConversationDeleted,
    EpisodeAmended,
    EpisodeClosed,
    EpisodeMessage,
    EpisodeMetrics,
    Fact,
    MessageCreated,
    MessageDeleted,
    MessageEdited,
    Quality,
    Source,
    SummaryCreated,
    SummaryDeleted,
    Usage,
    fingerprint,
)
from afterword.schemas.base import episode_id, event_id
from afterword.schemas.summaries import Calls
from afterword.streams.stores.episodes import Cause, Conversation, DeletedEpisode, FactOfUser, RollingRow, StoredEpisode
from afterword.streams.summarizer.reconciler import COPIED, compression
from afterword.streams.summarizer.summary import Summary
from afterword_text.tokens import count_tokens

NOON = datetime(2026, 1, 5, 12, 0, 0, 123000, tzinfo=UTC)
HOSTILE_METADATA = {
    "$where": "sleep(1)",
    "a.b": {"$ref": "users", "$id": 1, "$db": "x"},
    "": {"": [{"%24": 1, "$": 2, "%": 3}]},
    "numbers": [2**63 - 1, -(2**63), 0.5, True, None],
    "_id": "mine",
    "💬": "text",
}


def a_message(message_id: str = "m1", conversation_id: str = "c1", **fields: Any) -> MessageCreated:
    given: dict[str, Any] = {"user_id": "u1", "role": "user", "content": f"Text of {message_id}.", "sent_at": NOON}
    return MessageCreated(id=message_id, conversation_id=conversation_id, **{**given, **fields})


def a_whole_message() -> MessageCreated:
    """Return a message no field of which has its default; fails with the names of those that this lacks."""
    fields: dict[str, Any] = {
        "author": "Ann", "tenant_id": "t1", "agent_id": "a1", "reply_to": "m0", "sentiment": -0.25,
        "flows": ("f",), "tools": ("t", "u"), "content": "done \u2028 𝔘 \0", "is_continuation": False,
        "skip_summarization": True, "metadata": HOSTILE_METADATA,
    }  # fmt: skip
    message = a_message(**fields)
    defaults = {
        name: field.get_default(call_default_factory=True) for name, field in MessageCreated.model_fields.items()
    }
    lacking = {name for name, default in defaults.items() if getattr(message, name) == default}
    assert lacking == set(), "a_whole_message in tests/samples.py"
    return message


def an_episode_message(message_id: str, minute: int = 0, **fields: Any) -> EpisodeMessage:
    given: dict[str, Any] = {"role": "user", "content": f"Text of {message_id}.", "user_id": "u1"}
    return EpisodeMessage(id=message_id, sent_at=NOON + timedelta(minutes=minute), **{**given, **fields})


def a_closed_episode(ordinal: int = 1, conversation_id: str = "c1", size: int = 3, **fields: Any) -> EpisodeClosed:
    first = (ordinal - 1) * size
    messages = tuple(an_episode_message(f"m{n}", n) for n in range(first, first + size))
    given: dict[str, Any] = {
        "episode_id": episode_id(conversation_id, ordinal),
        "revision": 1,
        "conversation_id": conversation_id,
        "user_id": "u1",
        "tenant_id": "t1",
        "ordinal": ordinal,
        "close_reason": "trigger",
        "fingerprint": fingerprint(messages),
        "started_at": messages[0].sent_at,
        "ended_at": messages[-1].sent_at,
        "closed_at": messages[-1].sent_at,
        "messages": messages,
        "overlap": tuple(an_episode_message(f"m{n}", n) for n in range(max(first - 2, 0), first)),
        "message_count": size,
        "turn_count": size,
        "token_count": 100,
        "metrics": EpisodeMetrics(flows_activated=("booking",), average_sentiment=0.25, sentiment_variance=0.0),
        "source": Source(topic="messages", partition=0, first_offset=first, last_offset=first + size - 1),
    }
    return EpisodeClosed(**{**given, **fields})


def a_summary(ordinal: int = 1, conversation_id: str = "c1", revision: int = 1, **fields: Any) -> SummaryCreated:
    episode = episode_id(conversation_id, ordinal)
    given: dict[str, Any] = {
        "user_id": "u1",
        "tenant_id": "t1",
        "title": f"Title {ordinal}",
        "short_summary": "A flight to Rome was booked.",
        "long_summary": "The user asked for a flight to Rome. It was booked for Monday. The seat is still open.",
        "prompt_version": "episodic-1a2b3c4d",
        "message_ids": tuple(f"m{n}" for n in range((ordinal - 1) * 3, ordinal * 3)),
        "message_count": 3,
        "quality": Quality(source="llm", grounding=0.9, unsupported=("Rome",)),
        "model": "a-model",
        "usage": Usage(prompt_tokens=10, completion_tokens=5),
        "compression": Compression(tokens_before=100, tokens_after=20, ratio=0.8, events_before=3),
        "metrics": EpisodeMetrics(tools_invoked=("search",)),
        "started_at": NOON,
        "ended_at": NOON + timedelta(minutes=2),
        "closed_at": NOON + timedelta(minutes=3),
        "created_at": NOON + timedelta(minutes=ordinal),
    }
    ids = {"event_id": event_id(episode, revision), "episode_id": episode, "revision": revision}
    return SummaryCreated(conversation_id=conversation_id, ordinal=ordinal, **{**ids, **given, **fields})


Changed = MessageEdited | MessageDeleted | ConversationDeleted | ConversationAssigned


def an_amendment(event: Changed, offset: int, amended_at: datetime = NOON) -> EpisodeAmended:
    """Make the segmenter's record of a change at this offset of `messages`."""
    change, fields = ("edited", event.changes) if isinstance(event, MessageEdited) else ("deleted", {})
    if isinstance(event, ConversationAssigned):
        change, fields = "assigned", event.model_dump(include={"from_user_id", "user_id"})
    return EpisodeAmended(
        conversation_id=event.conversation_id,
        tenant_id=event.tenant_id,
        message_id=None if isinstance(event, ConversationDeleted | ConversationAssigned) else event.id,
        change=change,
        fields=fields,
        partition=0,
        offset=offset,
        amended_at=amended_at,
    )


def an_assignment(from_user_id: str = "u1", user_id: str = "u2", tenant_id: str | None = "t1") -> ConversationAssigned:
    return ConversationAssigned(conversation_id="c1", tenant_id=tenant_id, from_user_id=from_user_id, user_id=user_id)


def a_fact(statement: str = "lives in Porto", **fields: Any) -> Fact:
    given: dict[str, Any] = {"kind": "identity", "user_id": "u1", "said_by": "user", "message_ids": ("m1",)}
    return Fact(statement=statement, **{**given, **fields})


def a_cause(offset: int = 0) -> Cause:
    return Cause("episode.closed", 0, offset)


def some_calls(usage: Usage, outcome: str = "ok", model: str = "scripted") -> tuple[Calls, ...]:
    return (Calls(model, outcome, usage),)


def of_user(fact: Fact, ordinal: int = 1, ended_at: datetime = NOON, conversation_id: str = "c1") -> FactOfUser:
    """Make a fact of an episode as a profile reads it."""
    own = fact.model_dump(exclude={"user_id"}) | {"message_ids": list(fact.message_ids)}
    episode = f"{conversation_id}:{ordinal}"
    return FactOfUser(**own, episode_id=episode, conversation_id=conversation_id, ordinal=ordinal, ended_at=ended_at)


def a_stored_episode(ordinal: int = 1, *, fingerprint: str = "f1", **fields: Any) -> StoredEpisode:
    """Make a stored episode. `fields` are the episode's, or else its summary's."""
    own = {name: fields.pop(name) for name in StoredEpisode.__dataclass_fields__.keys() & fields.keys()}
    summary = a_summary(ordinal, **fields)
    given: dict[str, Any] = {
        "summary": summary,
        "calls": (Calls(summary.model, "ok", summary.usage),),
        "core_ids": summary.message_ids,
        "overlap_ids": ("m0", "m1"),
        "fingerprint": fingerprint,
        "close_reason": "flush",
        "first_offset": (ordinal - 1) * 3,
        "last_offset": ordinal * 3 - 1,
        "cause": a_cause(ordinal),
        "participants": (summary.user_id,),
        "writers": (summary.user_id,),
    }
    return StoredEpisode(**{**given, **own})


def a_conversation(scope: str = "c1", **fields: Any) -> Conversation:
    given: dict[str, Any] = {
        "revision": 1,
        "cause": a_cause(),
        "title": "Title 1",
        "user_id": "u1",
        "tenant_id": "t1",
        "episode_count": 1,
        "last_ordinal": 1,
        "message_count": 3,
        "updated_at": NOON,
        "last_at": NOON,
        "token_count": 100,
    }
    return Conversation(scope, **{**given, **fields})


def a_row(row: int = 1, scope: str = "c1", **fields: Any) -> RollingRow:
    given: dict[str, Any] = {
        "revision": 1,
        "cause": a_cause(),
        "content": f"All about {row}.",
        "is_complete": True,
        "first_ordinal": row,
        "last_ordinal": row,
        "inputs": ((row, 1),),
        "updated_at": NOON,
    }
    return RollingRow(scope, row, **{**given, **fields})


def a_tombstone(ordinal: int = 1, revision: int = 2, conversation_id: str = "c1", **fields: Any) -> DeletedEpisode:
    episode = episode_id(conversation_id, ordinal)
    deletion = SummaryDeleted(
        event_id=event_id(episode, revision),
        episode_id=episode,
        revision=revision,
        reason=fields.pop("reason", "deleted"),
        conversation_id=conversation_id,
        agent_id=None,
        tenant_id=fields.pop("tenant_id", "t1"),
        ordinal=ordinal,
        deleted_at=NOON,
    )
    given: dict[str, Any] = {
        "core_ids": tuple(f"m{n}" for n in range((ordinal - 1) * 3, ordinal * 3)),
        "overlap_ids": (),
        "last_offset": ordinal * 3 - 1,
        "cause": a_cause(ordinal),
    }
    return DeletedEpisode(deletion, **{**given, **fields})


def a_stored_episode_of(closed: EpisodeClosed, texts: Summary, revision: int = 1, **fields: Any) -> StoredEpisode:
    """Make an episode with these texts, as a summarizer stores it. `fields` are the stored episode's."""
    summary = SummaryCreated(
        event_id=event_id(closed.episode_id, revision),
        revision=revision,
        **{name: getattr(closed, name) for name in COPIED},
        episode_id=closed.episode_id,
        title=texts.title,
        short_summary=texts.short_summary,
        long_summary=texts.long_summary,
        message_ids=tuple(message.id for message in closed.messages),
        quality=texts.quality,
        model=texts.model,
        prompt_version=texts.prompt_version,
        usage=texts.usage,
        compression=compression(closed, count_tokens(texts.long_summary)),
        created_at=NOON,
    )
    given: dict[str, Any] = {
        "summary": summary,
        "calls": (Calls(summary.model, "ok", summary.usage),),
        "core_ids": summary.message_ids,
        "overlap_ids": tuple(message.id for message in closed.overlap),
        "fingerprint": closed.fingerprint,
        "close_reason": closed.close_reason,
        "first_offset": closed.source.first_offset,
        "last_offset": closed.source.last_offset,
        "cause": a_cause(closed.ordinal),
        "inputs": tuple((message.id, -1) for message in (*closed.messages, *closed.overlap)),
        "participants": tuple(dict.fromkeys(message.user_id for message in (*closed.messages, *closed.overlap))),
        "writers": tuple(dict.fromkeys(message.user_id for message in closed.messages)),
    }
    return StoredEpisode(**{**given, **fields})
