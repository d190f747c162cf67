"""`episode.closed`: a run of consecutive messages of one conversation, ready to be summarized."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import chain
from math import fsum
from typing import Any, Literal

import orjson
from pydantic import Field

from afterword.schemas.base import Id, Model, PartyId, Time
from afterword.schemas.messages import MessageCreated, Role

EPISODE_CLOSED = "episode.closed"
EPISODE_AMENDED = "episode.amended"
EPISODE_REDO = "episode.redo"

CloseReason = Literal["trigger", "topic_shift", "max_size", "idle", "flush"]
Change = Literal["edited", "deleted"]


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
    offset: int | None = None
    """Offset of its record on the topic of the messages."""
    changed: int | None = None
    """Log offset of the last edit that is in it; null: there was none before the episode closed."""


CARRIED = set(EpisodeMessage.model_fields.keys() & MessageCreated.model_fields.keys())
"""Fields of a message that its episode carries."""


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
    """Earliest `sent_at` of the core messages: they are in the order of the log, and clocks differ."""
    ended_at: Time
    """Latest `sent_at` of the core messages."""
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
    truncated: bool = False
    """`true`: edits made it too large for a record, and the longest contents lost their middle; the archive has all."""
    topic_model: int | None = None
    """Version of the model that found, in the text of the next message, the topic shift that ended it, or null."""


class EpisodeAmended(Model):
    """A change of messages that are in closed episodes; on the topic `episode.closed`, after those episodes."""

    conversation_id: Id
    """Equal to the record's key."""
    tenant_id: PartyId | None = None
    """Tenant that the change names; with another one than the conversation's it is a dead letter."""
    message_id: Id | None = None
    """The message; null: all of the conversation before `offset`."""
    change: Change
    """Change that was made to it."""
    fields: dict[str, Any] = Field(default_factory=dict)
    """The fields that the edit replaces, with their new values; `metadata`, which no summary has, is left out."""
    episode_id: str | None = None
    """Episode that has the message, where that is still known; null: not known, or more than one."""
    partition: int
    """Partition of the record on the topic of the messages."""
    offset: int
    """Offset of that record: of two changes the one with the higher offset counts."""
    amended_at: Time
    """Time of the record."""
    reason: str | None = None
    """Reason for people to read; the `reason` of the record."""


class EpisodeRedo(Model):
    """A request to redo the summary of a stored episode; on the topic `episode.closed`.

    By `afterword summaries redo`, or by a summarizer whose fallback the LLM is to replace.

    It has no content: the episode's messages are read from the archive.
    """

    conversation_id: Id
    """Equal to the record's key."""
    tenant_id: PartyId | None = None
    """Tenant of the conversation."""
    episode_id: str
    """The episode."""
    revision: int = Field(ge=1)
    """Revision of the summary to replace; where another one is stored, nothing is done."""
    attempt: int = Field(0, ge=0)
    """Requests for this revision before it that led to nothing; where there were more, nothing is done."""
    model: str
    """Model that is to write it; a summarizer that asks another one does nothing."""
    prompt_version: str
    """Prompt that is to be used; a summarizer with another one does nothing."""
    requested_at: Time
    """Time of the request."""


def fingerprint(messages: Iterable[EpisodeMessage]) -> str:
    """Compute the SHA-256, in hexadecimal, of the UTF-8 JSON array `[[id, content], …]` without white space."""
    return hashlib.sha256(orjson.dumps([[m.id, m.content] for m in messages])).hexdigest()


def user_of(core: Sequence[EpisodeMessage]) -> str:
    """User of the first `user` message, or of the first message when no user speaks."""
    for message in core:
        if message.role == "user":
            return message.user_id
    return core[0].user_id


def turns(core: Sequence[EpisodeMessage]) -> int:
    """Number of turns: a user message and all up to the next; what comes before the first user message is one too."""
    return [m.role for m in core].count("user") + (core[0].role != "user")


def metrics(core: Sequence[EpisodeMessage]) -> EpisodeMetrics:
    sentiments = [m.sentiment for m in core if m.sentiment is not None]
    mean = fsum(sentiments) / len(sentiments) if sentiments else None
    return EpisodeMetrics(
        flows_activated=unique(m.flows for m in core),
        tools_invoked=unique(m.tools for m in core),
        average_sentiment=mean,
        sentiment_variance=None if mean is None else variance(sentiments, mean),
    )


def unique(lists: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Each once, in order of first use."""
    return tuple(dict.fromkeys(chain.from_iterable(lists)))


def variance(numbers: Sequence[float], mean: float) -> float:
    """Variance of the population."""
    return fsum((n - mean) ** 2 for n in numbers) / len(numbers)
