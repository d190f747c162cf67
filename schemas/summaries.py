"""What everyone downstream subscribes to: summaries of episodes, their ends, and conversations as they grow."""

from typing import Annotated, Literal

from pydantic import Field

from afterword.schemas.base import Id, Model, PartyId, Time
from afterword.schemas.episodes import Change, EpisodeMetrics

SUMMARY_CREATED = "summary.created"
SUMMARY_DELETED = "summary.deleted"
CONVERSATION_UPDATED = "conversation.updated"
REDONE: Literal["redone"] = "redone"

RevisionReason = Change | Literal["redone"]


class Quality(Model):
    """Trustworthiness of a summary."""

    source: Literal["llm", "fallback"]
    """Origin of the summary."""
    reason: str | None = None
    """Reason why no LLM wrote it; null if one did."""
    grounding: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the summary's checkable tokens that occur in the source; null if not measured."""
    unsupported: tuple[str, ...] = ()
    """Checkable tokens of the summary that do not occur in the source."""
    truncated: bool = False
    """`true`: a message was too long to be read whole, and the summary was made without its middle."""


class Usage(Model):
    """Tokens that an LLM used, as its server counts them, and the time that it took; 0 if no LLM was asked."""

    prompt_tokens: int = 0
    """Tokens of all prompts."""
    completion_tokens: int = 0
    """Tokens of all answers."""
    seconds: float = Field(0.0, ge=0)
    """Seconds from questions to their answers, added up; those that failed are left out."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            seconds=round(self.seconds + other.seconds, 3),
        )


class Compression(Model):
    """Size of a summary compared with its source."""

    tokens_before: int
    """Tokens of the core contents."""
    tokens_after: int
    """Tokens of the long summary."""
    ratio: float
    """1 − after/before, of the tokens; negative when the summary is longer than its source."""
    events_before: int
    """Number of core messages."""
    events_after: int = 1
    """Always 1: the summary."""


class SummaryCreated(Model):
    """Summary of an episode, announced once to readers of committed records, always under the same `event_id`."""

    event_id: str
    """`{episode_id}:{revision}`, also in the header `ce_id`; a repeated event has the same id."""
    episode_id: str
    """Id of the episode."""
    revision: int = Field(ge=1)
    """Revision of the summary: 1, 2, … Keep the highest of each episode."""
    reason: RevisionReason | None = None
    """Why it was made again: a change of a message, or `redone`, on request or in place of a fallback; null: it is
    the episode's own."""
    conversation_id: Id
    """Equal to the record's key."""
    user_id: PartyId
    """User of the episode."""
    agent_id: PartyId | None = None
    """Agent of the episode, if episodes are kept per agent."""
    tenant_id: PartyId | None = None
    """Tenant of the conversation."""
    ordinal: int = Field(ge=1)
    """Position of the episode in its conversation: 1, 2, …"""
    title: str
    """Subject of the episode; the latest one is the conversation's title."""
    short_summary: str
    """Summary of the episode in one or two sentences."""
    long_summary: str
    """Summary of the episode."""
    message_ids: tuple[str, ...]
    """Ids of the core messages, in order."""
    message_count: int
    """Number of core messages."""
    quality: Quality
    """Trustworthiness of the summary."""
    model: str
    """Model that wrote the summary; `extractive` if no LLM did."""
    prompt_version: str | None = None
    """Preset and hash of the prompt; null if no LLM was asked."""
    usage: Usage
    """Tokens used by the LLM, over all questions."""
    compression: Compression
    """Size compared with the source."""
    metrics: EpisodeMetrics
    """Metrics of the core messages."""
    started_at: Time
    """Earliest `sent_at` of the core messages: they are in the order of the log, and clocks differ."""
    ended_at: Time
    """Latest `sent_at` of the core messages."""
    closed_at: Time
    """Time of closing the episode."""
    created_at: Time
    """Time of making the summary."""


class SummaryDeleted(Model):
    """End of an episode of which no message is left, announced once to readers of committed records.

    It counts as a revision: it replaces every `summary.created` of the episode, whichever is read first.
    """

    event_id: str
    """`{episode_id}:{revision}`, also in the header `ce_id`; a repeated event has the same id."""
    episode_id: str
    """Id of the episode; it is not used again."""
    revision: int = Field(ge=1)
    """Higher than that of every summary of the episode."""
    reason: Change | Literal["expired"]
    """Change to its messages; `edited`: the last remaining message is no longer to be summarized.

    `expired`: the episode is older than it is kept; announced only if its `episode.closed` is read again."""
    conversation_id: Id
    """Equal to the record's key."""
    agent_id: PartyId | None = None
    """Agent of the episode, if episodes are kept per agent."""
    tenant_id: PartyId | None = None
    """Tenant of the conversation."""
    ordinal: int = Field(ge=1)
    """Position of the episode in its conversation: 1, 2, …"""
    deleted_at: Time
    """Time of the deletion."""


class RollingSummary(Model):
    """A row of a conversation's rolling summary: one text about a range of its episodes."""

    row: int = Field(ge=1)
    """Position of the row: 1, 2, … Together the rows cover the conversation."""
    revision: int = Field(ge=1)
    """Revision of the row. Keep the highest of each."""
    first_ordinal: int
    """Ordinal of the first episode in the range."""
    last_ordinal: int
    """Ordinal of the last episode in the range."""
    text: str
    """Summary of these episodes; empty if nothing is left of them."""


class ConversationUpdated(Model):
    """A conversation after one of its episodes was summarized, revised or deleted.

    Announced once to readers of committed records. Of each conversation and agent keep the highest revision, and that
    of each row.
    """

    event_id: str
    """Id of the conversation, or of an agent's part of it, and of the record that led to it; also in `ce_id`."""
    revision: int = Field(ge=1)
    """Revision of the conversation: 1, 2, … Some are left out, and one may come twice, with other rows."""
    conversation_id: Id
    """Equal to the record's key."""
    user_id: PartyId
    """User that the conversation began with; empty if no episode is left."""
    agent_id: PartyId | None = None
    """Agent, if episodes are kept per agent."""
    tenant_id: PartyId | None = None
    """Tenant of the conversation."""
    title: str
    """Title of the last episode; empty if no episode is left."""
    rolling: tuple[RollingSummary, ...]
    """The rows that changed; the others stay as they were announced."""
    episode_count: int
    """Number of summarized episodes."""
    message_count: int
    """Number of messages in them."""
    last_ordinal: int
    """Ordinal of the last episode that was ever summarized."""
    updated_at: Time
    """Time of the last summary."""
