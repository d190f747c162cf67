"""A conversation's rolling summary: what was said before an episode, and which row it is put into. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo

from afterword.schemas import EpisodeClosed, EpisodeMessage, SummaryCreated
from afterword.streams.stores.episodes import Cause, Conversation, RollingRow
from afterword.streams.summarizer.extractive import condense
from afterword.streams.summarizer.summary import MAX_SUMMARY_LENGTH
from afterword.streams.text.tokens import count_tokens


@dataclass(frozen=True)
class SummaryRules:
    """The longest texts of a summary, and how its times are shown."""

    rolling_max_tokens: int
    """Tokens that complete a row of the rolling summary."""
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
    """The earlier part of a conversation, as known when one of its episodes is summarized."""

    rules: SummaryRules
    row: RollingRow | None
    """The row that contains the episode, or else the last one."""
    before: tuple[SummaryCreated, ...]
    """Summaries of the earlier episodes that are in the same row or, if it is in none, in no row yet; oldest first."""
    conversation: Conversation | None
    is_covered: bool = False
    """True if the row contains the episode."""

    @property
    def continued(self) -> RollingRow | None:
        """The row that a new episode is put into; None if it begins one, because the last row is complete."""
        row = self.row
        return row if row is not None and row.token_count < self.rules.rolling_max_tokens else None

    @property
    def text(self) -> str:
        """The beginning of the row, for the LLM to continue."""
        lines = [summary.long_summary for summary in self.before]
        if self.continued is not None and not self.is_covered:
            lines.insert(0, self.continued.content)
        return condense("\n".join(filter(None, lines)), self.rules.row_tokens)

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
        begun = self.continued
        if begun is None:
            return row, None
        number, first, inputs = begun.row, begun.first_ordinal, begun.inputs + new
        return replace(row, row=number, revision=begun.revision + 1, first_ordinal=first, inputs=inputs), begun


def inputs_of(summaries: Sequence[SummaryCreated]) -> tuple[tuple[int, int], ...]:
    return tuple((summary.ordinal, summary.revision) for summary in summaries)


def in_zone(episode: EpisodeClosed, zone: tzinfo) -> EpisodeClosed:
    """Convert the times of an episode's messages to the zone in which its summary counts days.

    The moments stay the same.
    """
    if zone is UTC:
        return episode

    def shown(message: EpisodeMessage) -> EpisodeMessage:
        try:
            return message.model_copy(update={"sent_at": message.sent_at.astimezone(zone)})
        except OverflowError:  # on the first or last day that Python can represent
            return message

    messages, overlap = tuple(map(shown, episode.messages)), tuple(map(shown, episode.overlap))
    return episode.model_copy(update={"messages": messages, "overlap": overlap})
