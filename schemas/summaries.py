"""The events that downstream services subscribe to: created and deleted summaries, and updated conversations."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from afterword.schemas.base import Id, Model, PartyId, Time
from afterword.schemas.episodes import Change, EpisodeFields, EpisodeKey
from afterword.schemas.messages import Role
from afterword_text.messages import FactKind, FactStatus

SUMMARY_CREATED = "summary.created"
SUMMARY_DELETED = "summary.deleted"
CONVERSATION_UPDATED = "conversation.updated"
REDONE: Literal["redone"] = "redone"

RevisionReason = Change | Literal["redone"]


class Quality(Model):
    """How trustworthy a summary is."""

    source: Literal["llm", "fallback"]
    """Whether an LLM or the fallback wrote the summary."""
    reason: str | None = None
    """Why no LLM wrote the summary; null if one did."""
    grounding: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the summary's checkable tokens that occur in the source; null if not measured."""
    unsupported: tuple[str, ...] = ()
    """Checkable tokens of the summary that do not occur in the source."""
    truncated: bool = False
    """`true` if a message was so long that the summary was made without its middle."""


class Usage(Model):
    """Tokens used by an LLM, as counted by its server, and the time it took; 0 if no LLM was called."""

    prompt_tokens: int = 0
    """Total tokens in the prompts."""
    cached_tokens: int = 0
    """How many of the prompt tokens the server had in its cache."""
    completion_tokens: int = 0
    """Total tokens in the answers."""
    seconds: float = Field(0.0, ge=0)
    """Total seconds from request to answer. Failed requests are not counted."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(**{name: round(getattr(self, name) + getattr(other, name), 3) for name in Usage.model_fields})


OK = "ok"
"""Outcome of an LLM's call whose answer was used."""


@dataclass(frozen=True)
class Calls:
    """What the calls of one model with the same outcome used."""

    model: str
    outcome: str
    """`ok`, or else the name of what made the call or its summary useless."""
    usage: Usage


def add_up(calls: Iterable[Calls]) -> tuple[Calls, ...]:
    """Combine the calls of the same model with the same outcome."""
    used: dict[tuple[str, str], Usage] = {}
    for one in calls:
        key = one.model, one.outcome
        used[key] = used.get(key, Usage()) + one.usage
    return tuple(Calls(*key, usage) for key, usage in used.items())


def total(calls: Iterable[Calls]) -> Usage:
    return sum((one.usage for one in calls), Usage())


class Compression(Model):
    """The size of a summary compared with its source."""

    tokens_before: int
    """Tokens in the contents of the core messages."""
    tokens_after: int
    """Tokens in the long summary."""
    ratio: float
    """1 − `tokens_after` / `tokens_before`; negative if the summary is longer than its source."""
    events_before: int
    """Number of core messages."""
    events_after: int = 1
    """Always 1, for the summary."""


class Fact(Model):
    """A short statement about a person, and the messages that state it."""

    statement: str
    """The statement, in the language of the conversation. Its subject may be left out."""
    kind: FactKind
    """What kind of fact it is: who somebody is, whom they know, what they must or cannot do, what they like, what they
    plan, or what happened."""
    attribute: str | None = None
    """Name of the value that it gives, such as `home_city`; null for none. A later fact with the same name replaces
    it."""
    status: FactStatus = "stated"
    """`implied` by a phrase that replaces no stated value, or `ended`: the messages say that it no longer holds."""
    about: str | None = None
    """Name of the person it is about; null for the user in `user_id`."""
    user_id: PartyId
    """User of the messages that state it."""
    said_by: Role
    """Role of those messages; `user` only if the user's own words state it."""
    message_ids: tuple[str, ...] = Field(min_length=1)
    """Ids of the core messages that state it, in order."""


class SummaryCreated(EpisodeFields):
    """A summary of an episode. Consumers that read committed records see each `event_id` once."""

    event_id: str
    """`{episode_id}:{revision}`, also in the header `ce_id`; a repeated event has the same id."""
    reason: RevisionReason | None = None
    """Why the summary was revised: a message was edited, assigned to another user (`edited`) or deleted, or it was
    `redone` on request or to replace a fallback. Null for an episode's first summary."""
    title: str
    """Subject of the episode. The first episode's title is the conversation's title."""
    short_summary: str
    """Summary of the episode in one or two sentences."""
    long_summary: str
    """Summary of the episode."""
    facts: tuple[Fact, ...] = ()
    """What the core messages say about people, in the order of these messages."""
    message_ids: tuple[str, ...]
    """Ids of the core messages, in order."""
    quality: Quality
    """How trustworthy the summary is."""
    model: str
    """Model that wrote the summary; `extractive` if no LLM did."""
    prompt_version: str | None = None
    """Preset and hash of the prompt; null if no LLM was called."""
    usage: Usage
    """Tokens used by the LLM in all requests."""
    compression: Compression
    """Size of the summary compared with its source."""
    created_at: Time
    """When the summary was made."""


class SummaryDeleted(EpisodeKey):
    """The end of an episode that has no messages left. Consumers that read committed records see it once.

    It counts as a revision and replaces every `summary.created` of the episode, whichever is read first.
    """

    event_id: str
    """`{episode_id}:{revision}`, also in the header `ce_id`; a repeated event has the same id."""
    revision: int = Field(ge=1)
    """Higher than the revision of every summary of the episode."""
    reason: Change | Literal["expired"]
    """What ended the episode. `edited`: its last remaining message is no longer to be summarized. `expired`: the
    episode is past its retention."""
    deleted_at: Time
    """When the summary was deleted."""


class RollingSummary(Model):
    """A row of a conversation's rolling summary: one text about a range of its episodes."""

    row: int = Field(ge=1)
    """Position of the row, starting with 1. Together the rows cover the conversation."""
    revision: int = Field(ge=1)
    """Revision of the row. Keep the highest of each row."""
    first_ordinal: int
    """Ordinal of the first episode in the range."""
    last_ordinal: int
    """Ordinal of the last episode in the range."""
    text: str
    """Summary of these episodes; empty if none of them is left."""


class ConversationUpdated(Model):
    """A conversation after one of its episodes was summarized, revised or deleted.

    Consumers that read committed records see it once. For each conversation and agent keep the highest revision, and
    for each row keep the row's highest revision.
    """

    event_id: str
    """Id of the conversation, or of an agent's part of it, with that of the record that caused the update; also in
    `ce_id`."""
    revision: int = Field(ge=1)
    """Revision of the conversation, starting with 1. Numbers may be skipped, and one may appear twice with different
    rows."""
    conversation_id: Id
    """Equal to the record's key."""
    user_id: PartyId
    """User of the conversation's first message; empty if no episode is left."""
    agent_id: PartyId | None = None
    """Agent, if episodes are kept per agent."""
    tenant_id: PartyId | None = None
    """Tenant of the conversation."""
    title: str
    """Title of the first episode; empty if no episode is left."""
    rolling: tuple[RollingSummary, ...]
    """The rows that changed. Other rows are as last announced. On the compacted topic it has all rows, or the last ones
    with up to 500 kB of text."""
    episode_count: int
    """Number of summarized episodes."""
    message_count: int
    """Number of messages in those episodes."""
    last_ordinal: int
    """Ordinal of the last episode that was ever summarized."""
    updated_at: Time
    """When the last summary was made."""


ANNOUNCED: Mapping[type[Model], tuple[str, str]] = {
    SummaryCreated: (SUMMARY_CREATED, "created_at"),
    SummaryDeleted: (SUMMARY_DELETED, "deleted_at"),
    ConversationUpdated: (CONVERSATION_UPDATED, "updated_at"),
}
"""The type of each of these events, after which its topic is named, and the field with its time."""
