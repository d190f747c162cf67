"""`episode.closed`: a run of consecutive messages of one conversation, ready to be summarized."""

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
    """Message as carried by an episode: everything a summary may need. `metadata` is in the archive only."""

    id: Id
    """Message id."""
    role: Role
    """Author's role."""
    content: str
    """The text; may be empty."""
    sent_at: Time
    """Event time; the record's timestamp if the message had none."""
    user_id: PartyId
    """User of the message."""
    agent_id: PartyId | None = None
    """Agent of the message."""
    sentiment: float | None = None
    """Sentiment of the user, −1 to 1; null: unknown."""
    flows: tuple[str, ...] = ()
    """Flows activated with this message."""
    tools: tuple[str, ...] = ()
    """Tools invoked with this message."""


class EpisodeMetrics(Model):
    """Metrics of the core messages; sentiment statistics are the population's, null if no message carries one."""

    flows_activated: tuple[str, ...] = ()
    """Flows, each once, in order of first use."""
    tools_invoked: tuple[str, ...] = ()
    """Tools, each once, in order of first use."""
    average_sentiment: float | None = None
    """Mean sentiment."""
    sentiment_variance: float | None = None
    """Variance of the sentiment."""


class Source(Model):
    """Topic, partition and offsets of an episode."""

    topic: str
    """Topic of the messages."""
    partition: int
    """Partition of that topic."""
    first_offset: int
    """Offset of the first core message."""
    last_offset: int
    """Offset of the last core message."""


class EpisodeClosed(Model):
    """Closed episode, self-contained: summarizing it needs nothing else."""

    episode_id: str
    """`{conversation_id}:{ordinal}`; with `scope = agent`, `{conversation_id}/{agent_id}:{ordinal}`."""
    revision: int = Field(ge=1)
    """Revision of the episode: 1, 2, …"""
    conversation_id: Id
    """Equal to the record's key."""
    user_id: PartyId
    """User of the first `user` message; of the first message if no user speaks."""
    agent_id: PartyId | None = None
    """Agent of the episode if episodes are kept per agent; else null."""
    tenant_id: PartyId | None = None
    """Tenant of the conversation."""
    ordinal: int = Field(ge=1)
    """Position of the episode in its conversation: 1, 2, …"""
    close_reason: CloseReason
    """Reason for the end of the episode."""
    fingerprint: str
    """SHA-256, in hexadecimal, of the core ids and contents."""
    started_at: Time
    """`sent_at` of the first core message."""
    ended_at: Time
    """`sent_at` of the last core message."""
    closed_at: Time
    """Time of closing."""
    messages: tuple[EpisodeMessage, ...] = Field(min_length=1)
    """Core messages; they are in no other episode."""
    overlap: tuple[EpisodeMessage, ...] = ()
    """Last core messages of the previous episode, for context; not counted."""
    message_count: int
    """Number of core messages."""
    turn_count: int
    """Number of turns. A turn is a user message and everything up to the next one; messages before the first user
    message count as one."""
    token_count: int
    """Tokens of the core contents, counted with `o200k_base`."""
    metrics: EpisodeMetrics
    """Metrics of the core messages."""
    source: Source
    """Log position of the core messages."""


def fingerprint(messages: Iterable[EpisodeMessage]) -> str:
    """Compute the SHA-256, in hexadecimal, of the UTF-8 JSON array `[[id, content], …]` without white space."""
    return hashlib.sha256(orjson.dumps([[m.id, m.content] for m in messages])).hexdigest()
