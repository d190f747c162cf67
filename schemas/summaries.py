"""`summary.created`: what everyone downstream subscribes to."""

from typing import Annotated, Literal

from pydantic import Field

from afterword.schemas.base import Id, Model, PartyId, Time
from afterword.schemas.episodes import EpisodeMetrics

SUMMARY_CREATED = "summary.created"


class Quality(Model):
    """How far the summary can be trusted."""

    source: Literal["llm", "fallback"]
    """Who wrote it."""
    reason: str | None = None
    """Why no LLM wrote it; null where one did."""
    grounding: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the summary's checkable tokens that occur in the source; null where it was not measured."""
    unsupported: tuple[str, ...] = ()
    """Checkable tokens of the summary that do not occur in the source."""
    truncated: bool = False
    """A message was too long to be read whole: the summary was made without its middle."""


class Usage(Model):
    prompt_tokens: int = 0
    """As the LLM's server counts them; 0 where none was asked."""
    completion_tokens: int = 0
    """As the LLM's server counts them; 0 where none was asked."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
        )


class Compression(Model):
    tokens_before: int
    """Of the core's contents."""
    tokens_after: int
    """Of the long summary."""
    ratio: float
    """1 − after/before, of the tokens; negative when the summary is longer than its source."""
    events_before: int | None = None
    """Core messages; null in episodes that were stored before this was counted."""
    events_after: int | None = None
    """1: the summary."""


class SummaryCreated(Model):
    """Announced at least once, always under the same `event_id`."""

    event_id: str
    """`{episode_id}:{revision}`, also in the header `ce_id`; a repeat has the same."""
    episode_id: str
    """As in `episode.closed`."""
    revision: int = Field(ge=1)
    """1, 2 …: of the summary. The highest one of an episode is the one to keep."""
    episode_revision: int | None = Field(None, ge=1)
    """Of the `episode.closed` that it was made from; null: the same as `revision`."""
    supersedes: str | None = None
    """The `event_id` of the summary that this one replaces, such as a fallback's; null: of none."""
    conversation_id: Id
    """Equal to the record's key."""
    user_id: PartyId
    """As in `episode.closed`."""
    agent_id: PartyId | None = None
    """As in `episode.closed`."""
    tenant_id: PartyId | None = None
    """As in `episode.closed`."""
    ordinal: int = Field(ge=1)
    """1, 2 …: the episode's place in the conversation."""
    title: str
    """What the episode is about; the conversation's last one is its title."""
    title_changed: bool | None = None
    """Whether the conversation has another title by it; null in events from before this was told."""
    short_summary: str
    """Of the episode, in a sentence or two."""
    long_summary: str
    """Of the episode."""
    rolling_summary: str
    """Of the conversation up to this episode."""
    rolling_ordinals: tuple[int, ...] | None = None
    """Episodes, ascending, that `rolling_summary` tells of for the first time; none where it was carried over.

    null in events from before this was told: the episode itself.
    """
    message_ids: tuple[str, ...]
    """Of the core, in order."""
    message_count: int
    """Core messages."""
    quality: Quality
    """How far it can be trusted."""
    model: str
    """That wrote it; `extractive` where none did."""
    prompt_version: str | None = None
    """Preset and hash of what the LLM was asked; null where none was."""
    usage: Usage
    """What the LLM used for it, all questions together."""
    compression: Compression
    """How much shorter it is than its source."""
    metrics: EpisodeMetrics
    """As in `episode.closed`."""
    started_at: Time
    """As in `episode.closed`."""
    ended_at: Time
    """As in `episode.closed`."""
    closed_at: Time
    """When the episode was closed."""
    created_at: Time
    """When the summary was made."""

    @property
    def made_from(self) -> int:
        """The revision of its `episode.closed`."""
        return self.episode_revision or self.revision

    @property
    def rolling_range(self) -> tuple[int, int] | None:
        """First and last ordinal that `rolling_summary` tells of for the first time; None where it was carried over."""
        if self.rolling_ordinals is None:
            return self.ordinal, self.ordinal
        return (self.rolling_ordinals[0], self.rolling_ordinals[-1]) if self.rolling_ordinals else None
