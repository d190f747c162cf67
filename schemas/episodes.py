"""`episode.closed`: a run of consecutive messages of one conversation, ready to be summarized."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from math import fsum
from typing import Any, Literal, Self

import orjson
from pydantic import Field

from afterword.schemas.base import Id, Model, PartyId, Time
from afterword.schemas.messages import MessageFields, replaced_answers

EPISODE_CLOSED = "episode.closed"
EPISODE_AMENDED = "episode.amended"
EPISODE_REDO = "episode.redo"

CloseReason = Literal["trigger", "topic_shift", "max_size", "idle", "flush"]
ASSIGNED: Literal["assigned"] = "assigned"
Change = Literal["edited", "deleted"]


class EpisodeMessage(MessageFields):
    """A message as carried by an episode, with everything a summary may need. `metadata` is only in the archive."""

    sent_at: Time
    """Event time; the record's timestamp if the message had none."""
    offset: int | None = None
    """Offset of the message's record on the messages topic."""
    changed: int | None = None
    """Log offset of the last edit applied to the message; null if there was none before the episode closed."""


CARRIED = set(MessageFields.model_fields)
"""Message fields that an episode carries."""


class EpisodeMetrics(Model):
    """Metrics of the core messages. Sentiment statistics are null if no message carries a sentiment."""

    flows_activated: tuple[str, ...] = ()
    """Flows in order of first use, without repetition."""
    tools_invoked: tuple[str, ...] = ()
    """Tools in order of first use, without repetition."""
    average_sentiment: float | None = None
    """Mean sentiment."""
    sentiment_variance: float | None = None
    """Population variance of the sentiment."""


class Source(Model):
    """The topic, partition and offsets that an episode covers."""

    topic: str
    """The messages topic."""
    partition: int
    """The partition of that topic."""
    first_offset: int
    """Offset of the first core message."""
    last_offset: int
    """Offset of the last core message."""


class EpisodeKey(Model):
    """What names an episode, in every event about one."""

    episode_id: str
    """`{conversation_id}:{ordinal}`; with `scope = agent`, `{conversation_id}/{agent_id}:{ordinal}`."""
    revision: int = Field(ge=1)
    """Revision of the episode, starting with 1. Keep the highest of each episode."""
    conversation_id: Id
    """Equal to the record's key."""
    agent_id: PartyId | None = None
    """Agent of the episode, if episodes are kept per agent."""
    tenant_id: PartyId | None = None
    """Tenant of the conversation."""
    ordinal: int = Field(ge=1)
    """Position of the episode in its conversation, starting with 1."""


class EpisodeFields(EpisodeKey):
    """What an episode's summary takes over from it."""

    user_id: PartyId
    """User of the first `user` message, or of the first message if there is no `user` message."""
    message_count: int
    """Number of core messages."""
    metrics: EpisodeMetrics
    """Metrics of the core messages."""
    started_at: Time
    """Earliest `sent_at` of the core messages. It need not be the first message's, because clocks differ."""
    ended_at: Time
    """Latest `sent_at` of the core messages."""
    closed_at: Time
    """When the episode was closed."""


class EpisodeClosed(EpisodeFields):
    """A closed episode. It is self-contained: summarizing it needs nothing else."""

    close_reason: CloseReason
    """Why the episode was closed."""
    fingerprint: str
    """Hexadecimal SHA-256 of the ids and contents of the core messages."""
    messages: tuple[EpisodeMessage, ...] = Field(min_length=1)
    """The core messages. They belong to no other episode."""
    overlap: tuple[EpisodeMessage, ...] = ()
    """The last core messages of the previous episode, included for context and not counted."""
    turn_count: int
    """Number of turns. A turn is a user message and everything up to the next one; messages before the first user
    message count as one."""
    token_count: int
    """Number of tokens in the contents of the core messages, counted with `o200k_base`."""
    source: Source
    """Log position of the core messages."""
    truncated: bool = False
    """`true` if edits made the episode too large for a record, so that the longest contents lost their middle. The
    archive has the full text."""

    def of_users(self, present: Callable[[str, int], str]) -> Self:
        """Return the event with the `present` user of each message, given its user and offset."""
        first = self.source.first_offset

        def own(message: EpisodeMessage) -> EpisodeMessage:
            offset = first if message.offset is None else message.offset
            return message.model_copy(update={"user_id": present(message.user_id, offset)})

        core, overlap = (tuple(map(own, some)) for some in (self.messages, self.overlap))
        return self.model_copy(update={"user_id": user_of(core), "messages": core, "overlap": overlap})

    @property
    def with_last_answers(self) -> Self:
        """The event without the answers that later ones replace, which are not summarized."""
        replaced = replaced_answers((*self.overlap, *self.messages))
        core, overlap = (
            tuple(message for message in some if message.id not in replaced) for some in (self.messages, self.overlap)
        )
        return self.model_copy(update={"messages": core, "overlap": overlap}) if replaced and core else self


class EpisodeAmended(Model):
    """A change to messages of closed episodes. It follows those episodes on the topic `episode.closed`."""

    conversation_id: Id
    """Equal to the record's key."""
    tenant_id: PartyId | None = None
    """Tenant named by the change. If it differs from the conversation's, the change is dead-lettered."""
    message_id: Id | None = None
    """The changed message; null for every message of the conversation before `offset`, or for an assignment."""
    change: Change | Literal["assigned"]
    """What happened to the message, or that the conversation's messages of one user were assigned to another."""
    fields: dict[str, Any] = Field(default_factory=dict)
    """The fields that the edit replaces, with their new values, without `metadata`, which summaries do not use. Of an
    assignment, `from_user_id` and `user_id`."""
    episode_id: str | None = None
    """The episode with the message; null if it is unknown or there are several."""
    partition: int
    """Partition of the change's record on the messages topic."""
    offset: int
    """Offset of that record. Of two changes, the one with the higher offset wins."""
    amended_at: Time
    """Timestamp of that record."""
    reason: str | None = None
    """Free-text reason, copied from the record's `reason`."""


class EpisodeRedo(Model):
    """A request to redo the summary of a stored episode, on the topic `episode.closed`.

    A summarizer sends it to replace a fallback, or a summary that `afterword summaries redo` has marked. The messages
    are read from the archive.
    """

    conversation_id: Id
    """Equal to the record's key."""
    tenant_id: PartyId | None = None
    """Tenant of the conversation."""
    episode_id: str
    """The episode to summarize again."""
    revision: int = Field(ge=1)
    """Revision of the summary to replace. If another revision is stored, the request is ignored."""
    attempt: int = Field(0, ge=0)
    """Number of earlier failed requests for this revision. If there have been more by now, the request is ignored."""
    expired: bool = False
    """True if the episode has expired, so that it is removed. A summarizer that keeps episodes longer ignores it."""
    requested_at: Time
    """When the request was made."""


def fingerprint(messages: Iterable[EpisodeMessage]) -> str:
    """Return the hexadecimal SHA-256 of the UTF-8 JSON array `[[id, content], …]` without white space."""
    return hashlib.sha256(orjson.dumps([[m.id, m.content] for m in messages])).hexdigest()


def user_of(core: Sequence[EpisodeMessage]) -> str:
    """Return the user of the first `user` message, or of the first message if there is no `user` message."""
    for message in core:
        if message.role == "user":
            return message.user_id
    return core[0].user_id


def turns(core: Sequence[EpisodeMessage]) -> int:
    """Count the turns: a user message and everything up to the next one; earlier messages count as one turn."""
    return [m.role for m in core].count("user") + (core[0].role != "user")


def metrics(core: Sequence[EpisodeMessage]) -> EpisodeMetrics:
    sentiments = [m.sentiment for m in core if m.sentiment is not None]
    mean = fsum(sentiments) / len(sentiments) if sentiments else None
    return EpisodeMetrics(
        flows_activated=tuple(dict.fromkeys(flow for m in core for flow in m.flows)),
        tools_invoked=tuple(dict.fromkeys(tool for m in core for tool in m.tools)),
        average_sentiment=mean,
        sentiment_variance=None if mean is None else fsum((n - mean) ** 2 for n in sentiments) / len(sentiments),
    )
