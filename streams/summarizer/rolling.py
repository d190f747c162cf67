"""The rolling summary of a conversation: when it grows, and what its rows say. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import TypeVar

from afterword.schemas import EpisodeClosed, EpisodeMessage, SummaryCreated
from afterword.streams.settings import MOST_PENDING_EPISODES
from afterword.streams.stores.episodes import Cause, Conversation, RollingRow
from afterword.streams.summarizer.extractive import condense
from afterword.streams.summarizer.summary import MAX_SUMMARY_LENGTH
from afterword.streams.text.tokens import count_tokens

PENDING_TOKENS = 2000
"""Most tokens of the long summaries that an LLM is shown; above that, short ones take their place."""


@dataclass(frozen=True)
class SummaryRules:
    """Longest texts of a summary, and the cadence of the rolling summary."""

    rolling_max_tokens: int
    min_new_episodes: int = 1
    min_tokens: int = 0
    """Tokens of the new episodes together."""
    max_summary_length: int = MAX_SUMMARY_LENGTH
    """Characters."""
    zone: tzinfo = UTC
    """Zone in which the days of the messages count."""

    @property
    def row_tokens(self) -> int:
        """Most tokens of a row's text. It is a quarter more than what completes a row, or none ever would be."""
        return self.rolling_max_tokens * 5 // 4


@dataclass(frozen=True)
class History:
    """What is known of a conversation when one of its episodes is summarized."""

    rules: SummaryRules
    row: RollingRow | None
    """The row that has the episode, or else the last one."""
    before: tuple[SummaryCreated, ...]
    """Summaries of the episodes before it that are in this row or, if it is in none, in none yet; oldest first."""
    conversation: Conversation | None
    is_covered: bool = False
    """True if the row has the episode."""
    is_foreign: bool = False
    """True if the conversation began with another tenant, whose texts stay theirs."""

    @property
    def is_continued(self) -> bool:
        """Return whether the next text goes into the last row: that one is not complete."""
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
        """Return whether an episode with these tokens lets the rolling summary grow: enough is new, or all of it."""
        count = len(self.before) + 1
        tokens += sum(summary.compression.tokens_before for summary in self.before)
        enough = count >= self.rules.min_new_episodes and tokens >= self.rules.min_tokens
        return self.row is None or enough or count >= MOST_PENDING_EPISODES

    def next_row(
        self, scope: str, summary: SummaryCreated, text: str, cause: Cause
    ) -> tuple[RollingRow, RollingRow | None]:
        """The row that `text` makes of the last one and the summaries since; and the row whose place it takes."""
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


def remade(row: RollingRow, inputs: tuple[tuple[int, int], ...], text: str, cause: Cause, now: datetime) -> RollingRow:
    """The row with another text, made of these episodes.

    It stays, without a text, if none is left: else a writer that was suspended would put its text back.
    """
    return replace(
        row,
        revision=row.revision + 1,
        cause=cause,
        content=text,
        token_count=count_tokens(text),
        inputs=inputs,
        updated_at=now,
    )


E = TypeVar("E", bound=EpisodeClosed)


def in_zone(episode: E, zone: tzinfo) -> E:
    """Write the times of an episode's messages in the zone, in which its summary counts days. The moments stay."""
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
    except OverflowError:  # on the first or the last day of all that have a date
        return message
