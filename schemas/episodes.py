"""`episode.closed`: a run of consecutive messages of one conversation, ready to be summarised."""

import hashlib
from collections.abc import Iterable
from typing import Literal

import orjson
from pydantic import Field

from schemas.base import Id, Model, PartyId, Time
from schemas.messages import Role

EPISODE_CLOSED = "episode.closed"

CloseReason = Literal["trigger", "topic_shift", "max_size", "idle", "flush"]


class EpisodeMessage(Model):
    """A message as an episode carries it: all that a summary may need, and no `metadata`, which is the archive's."""

    id: Id
    role: Role
    content: str
    sent_at: Time
    user_id: PartyId
    agent_id: PartyId | None = None
    sentiment: float | None = None
    flows: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()


class EpisodeMetrics(Model):
    """Over the core messages; sentiment is the population's, null when no message carries one."""

    flows_activated: tuple[str, ...] = ()
    tools_invoked: tuple[str, ...] = ()
    average_sentiment: float | None = None
    sentiment_variance: float | None = None


class Source(Model):
    """Where the core messages were read."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int


class EpisodeClosed(Model):
    """Self-contained: whoever summarises it needs nothing else."""

    episode_id: str
    revision: int = Field(ge=1)
    conversation_id: Id
    user_id: PartyId
    agent_id: PartyId | None = None
    tenant_id: PartyId | None = None
    ordinal: int = Field(ge=1)
    close_reason: CloseReason
    fingerprint: str
    started_at: Time
    ended_at: Time
    closed_at: Time
    messages: tuple[EpisodeMessage, ...] = Field(min_length=1)
    overlap: tuple[EpisodeMessage, ...] = ()
    message_count: int
    turn_count: int
    token_count: int
    metrics: EpisodeMetrics
    source: Source


def fingerprint(messages: Iterable[EpisodeMessage]) -> str:
    """SHA-256, in hexadecimal, of the UTF-8 JSON array `[[id, content], …]` written without white space."""
    return hashlib.sha256(orjson.dumps([[m.id, m.content] for m in messages])).hexdigest()
