"""`summary.created`: what everyone downstream subscribes to."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Id, Model, PartyId, Time
from schemas.episodes import EpisodeMetrics

SUMMARY_CREATED = "summary.created"


class Quality(Model):
    """How far the summary can be trusted."""

    source: Literal["llm", "fallback"]
    reason: str | None = None
    """Why no LLM wrote it; None where one did."""
    grounding: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the summary's checkable tokens that occur in the source; None where it was not measured."""
    unsupported: tuple[str, ...] = ()
    truncated: bool = False
    """A message was too long to be read whole: the summary was made without its middle."""


class Usage(Model):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Compression(Model):
    tokens_before: int
    tokens_after: int
    ratio: float
    """1 − after/before, of the tokens; negative when the summary is longer than its source."""
    events_before: int | None = None
    """Core messages; None in episodes that were stored before this was counted."""
    events_after: int | None = None
    """1: the summary."""


class SummaryCreated(Model):
    """Announced at least once, always under the same `event_id`."""

    event_id: str
    episode_id: str
    revision: int = Field(ge=1)
    """1, 2 …: of the summary. The highest one of an episode is the one to keep."""
    episode_revision: int | None = Field(None, ge=1)
    """Of the `episode.closed` that it was made from; None: the same as `revision`."""
    supersedes: str | None = None
    """The `event_id` of the summary that this one replaces, such as a fallback's; None: of none."""
    conversation_id: Id
    user_id: PartyId
    agent_id: PartyId | None = None
    tenant_id: PartyId | None = None
    ordinal: int = Field(ge=1)
    title: str
    title_changed: bool | None = None
    """Whether the conversation has another title by it; None in events from before this was told."""
    short_summary: str
    long_summary: str
    rolling_summary: str
    rolling_ordinals: tuple[int, ...] | None = None
    """Episodes, ascending, that `rolling_summary` tells of for the first time; none where it was carried over.

    None in events from before this was told: the episode itself.
    """
    message_ids: tuple[str, ...]
    message_count: int
    quality: Quality
    model: str
    prompt_version: str | None = None
    """Preset and hash of what the LLM was asked; None where none was."""
    usage: Usage
    compression: Compression
    metrics: EpisodeMetrics
    started_at: Time
    ended_at: Time
    closed_at: Time
    created_at: Time

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
