"""`episode.closed`: a run of consecutive messages of one conversation, ready to be summarised."""

import hashlib
from collections.abc import Iterable
from typing import Literal

import orjson
from pydantic import Field

from afterword.schemas.base import Id, Model, PartyId, Time
from afterword.schemas.messages import Role

EPISODE_CLOSED = "episode.closed"

CloseReason = Literal["trigger", "topic_shift", "max_size", "idle", "flush"]


class EpisodeMessage(Model):
    """A message as an episode carries it: all that a summary may need, and no `metadata`, which is the archive's."""

    id: Id
    """Of the message."""
    role: Role
    """Who speaks."""
    content: str
    """The text; may be empty."""
    sent_at: Time
    """Event time; where the message had none, the record's timestamp."""
    user_id: PartyId
    """Of the message."""
    agent_id: PartyId | None = None
    """Of the message."""
    sentiment: float | None = None
    """Of the user, −1 to 1; null: unknown."""
    flows: tuple[str, ...] = ()
    """Activated with this message."""
    tools: tuple[str, ...] = ()
    """Invoked with this message."""


class EpisodeMetrics(Model):
    """Over the core messages; sentiment is the population's, null when no message carries one."""

    flows_activated: tuple[str, ...] = ()
    """Each once, in order of first use."""
    tools_invoked: tuple[str, ...] = ()
    """Each once, in order of first use."""
    average_sentiment: float | None = None
    """Mean."""
    sentiment_variance: float | None = None
    """Variance."""


class Source(Model):
    """Where the core messages were read."""

    topic: str
    """Of the messages."""
    partition: int
    """Of that topic."""
    first_offset: int
    """Of the first core message."""
    last_offset: int
    """Of the last core message."""


class EpisodeClosed(Model):
    """Self-contained: whoever summarises it needs nothing else."""

    episode_id: str
    """`{conversation_id}:{ordinal}`; of an agent `{conversation_id}/{agent_id}:{ordinal}`."""
    revision: int = Field(ge=1)
    """1, 2 …: of the episode."""
    conversation_id: Id
    """Equal to the record's key."""
    user_id: PartyId
    """Of its first `user` message; of its first message where no user speaks."""
    agent_id: PartyId | None = None
    """Whose episode it is, where episodes are kept by agent; else null."""
    tenant_id: PartyId | None = None
    """Of the conversation."""
    ordinal: int = Field(ge=1)
    """1, 2 …: its place in the conversation."""
    close_reason: CloseReason
    """Why it ended here."""
    fingerprint: str
    """SHA-256, in hexadecimal, of the core's ids and contents."""
    started_at: Time
    """`sent_at` of the first core message."""
    ended_at: Time
    """`sent_at` of the last core message."""
    closed_at: Time
    """When it was closed."""
    messages: tuple[EpisodeMessage, ...] = Field(min_length=1)
    """Its core: they are in no other episode."""
    overlap: tuple[EpisodeMessage, ...] = ()
    """The last ones of the episode before, for the transition; not counted."""
    message_count: int
    """Core messages."""
    turn_count: int
    """A turn is a message of a user and all up to the next; what comes before the first is one as well."""
    token_count: int
    """Tokens of the core's contents, by `o200k_base`."""
    metrics: EpisodeMetrics
    """Of the core."""
    source: Source
    """Where the core was read."""


def fingerprint(messages: Iterable[EpisodeMessage]) -> str:
    """SHA-256, in hexadecimal, of the UTF-8 JSON array `[[id, content], …]` written without white space."""
    return hashlib.sha256(orjson.dumps([[m.id, m.content] for m in messages])).hexdigest()
