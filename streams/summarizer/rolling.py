"""A conversation's rolling summary: when it grows, and what its rows say. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from typing import TypeVar

from afterword.schemas import EpisodeClosed, EpisodeMessage, SummaryCreated
from afterword.streams.settings import MOST_PENDING_EPISODES
from afterword.streams.stores.episodes import Cause, Conversation, RollingRow
from afterword.streams.summarizer.extractive import condense
from afterword.streams.summarizer.summary import MAX_SUMMARY_LENGTH
from afterword.streams.text.tokens import count_tokens

PENDING_TOKENS = 2000
"""Maximum number of tokens of long summaries that an LLM is shown; beyond that, short ones take their place."""


@dataclass(frozen=True)
class SummaryRules:
    """The longest texts of a summary, and the cadence of the rolling summary."""

    rolling_max_tokens: int
    min_new_episodes: int = 1
    min_tokens: int = 0
    """Fewest tokens of the new episodes together."""
    max_summary_length: int = MAX_SUMMARY_LENGTH
    """Characters of the long summary."""
    zone: tzinfo = UTC
    """Time zone in which the messages' days count."""

    @property
    def row_tokens(self) -> int:
        """Maximum tokens of a row's text: a quarter more than completes a row, or no row would ever be complete."""
        return self.rolling_max_tokens * 5 // 4


@dataclass(frozen=True)
class History:
    """What is known of a conversation when one of its episodes is summarized."""

    rules: SummaryRules
    row: RollingRow | None
    """The row that contains the episode, or else the last one."""
    before: tuple[SummaryCreated, ...]
    """Summaries of the earlier episodes that are in the same row or, if it is in none, in no row yet; oldest first."""
    conversation: Conversation | None
    is_covered: bool = False
    """True if the row contains the episode."""
    is_foreign: bool = False
    """True if the conversation began with another tenant, whose texts must not be shown."""

    @property
    def is_continued(self) -> bool:
        """True if the next text goes into the last row, because that row is not complete."""
        row = None if self.is_foreign else self.row
        return row is not None and row.token_count < self.rules.rolling_max_tokens

    @property
    def text(self) -> str:
        """The beginning of the row, for the LLM to continue."""
        long = [summary.long_summary for summary in self.before]
        fits = count_tokens("\n".join(long)) <= PENDING_TOKENS
        lines = long if fits else [summary.short_summary for summary in self.before]
        if self.is_covered:
            return condense("\n".join(filter(None, lines)), self.rules.row_tokens)
        begun = self.row.content if self.row and self.is_continued else ""
        return "\n".join(filter(None, (begun, *lines)))

    def is_due(self, tokens: int) -> bool:
        """Return whether an episode with this many tokens makes the rolling summary grow.

        It does if enough is new, or if the conversation has no row yet.
        """
        count = len(self.before) + 1
        tokens += sum(summary.compression.tokens_before for summary in self.before)
        enough = count >= self.rules.min_new_episodes and tokens >= self.rules.min_tokens
        return self.row is None or enough or count >= MOST_PENDING_EPISODES

    def next_row(
        self, scope: str, summary: SummaryCreated, text: str, cause: Cause
    ) -> tuple[RollingRow, RollingRow | None]:
        """Return the row that `text` makes of the last one and the summaries since, and the row that it replaces."""
        new = inputs_of((*self.before, summary))
        row = RollingRow(
            conversation_id=scope,
            row=self.row.row + 1 if self.row else 1,
            revision=1,
            cause=cause,
            content=text,
            token_count=count_tokens(text),
            first_ordinal=self.row.last_ordinal + 1 if self.row else 1,
            last_ordinal=summary.ordinal,
            inputs=new,
            updated_at=summary.created_at,
        )
        if not (self.row and self.is_continued):
            return row, None
        continued = replace(
            row,
            row=self.row.row,
            revision=self.row.revision + 1,
            first_ordinal=self.row.first_ordinal,
            inputs=self.row.inputs + new,
        )
        return continued, self.row


def inputs_of(summaries: Sequence[SummaryCreated]) -> tuple[tuple[int, int], ...]:
    return tuple((summary.ordinal, summary.revision) for summary in summaries)


E = TypeVar("E", bound=EpisodeClosed)


def in_zone(episode: E, zone: tzinfo) -> E:
    """Convert the times of an episode's messages to the zone in which its summary counts days.

    The moments stay the same.
    """
    if zone is UTC:
        return episode
    shown = {
        "messages": tuple(_message_in_zone(message, zone) for message in episode.messages),
        "overlap": tuple(_message_in_zone(message, zone) for message in episode.overlap),
    }
    return episode.model_copy(update=shown)


def _message_in_zone(message: EpisodeMessage, zone: tzinfo) -> EpisodeMessage:
    try:
        return message.model_copy(update={"sent_at": message.sent_at.astimezone(zone)})
    except OverflowError:  # on the first or last day that Python can represent
        return message
