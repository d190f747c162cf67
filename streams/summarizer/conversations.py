"""A conversation's rolling rows, title and counts, which follow its episodes."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple, Self

from afterword.schemas import (
    ConversationUpdated,
    EpisodeClosed,
    RollingSummary,
    SummaryCreated,
    SummaryDeleted,
)
from afterword.schemas.base import episode_id, scope_id
from afterword.streams.stores.episodes import (
    Cause,
    Conversation,
    EpisodeStore,
    RollingRow,
    StoredEpisode,
    agent_of_scope,
)
from afterword.streams.summarizer.summary import SummaryRequest, SummaryRules, in_zone
from afterword_text.extractive import condense
from afterword_text.tokens import count_tokens

MOST_BEFORE = 20
"""An LLM is told about at most this many earlier episodes of a row."""
MAX_ROLLING_BYTES = 500_000
"""Maximum number of bytes of row texts in one record. JSON escapes may make them somewhat longer, and a record may have
2 MiB."""


class Scope(NamedTuple):
    """A conversation, or an agent's part of it if each agent has its own episodes."""

    conversation_id: str
    agent_id: str | None
    tenant_id: str | None

    @classmethod
    def of(cls, event: EpisodeClosed | SummaryCreated | SummaryDeleted) -> Self:
        return cls(event.conversation_id, agent_of_scope(event), event.tenant_id)

    @property
    def id(self) -> str:
        return scope_id(self.conversation_id, self.agent_id)

    def episode_id(self, ordinal: int) -> str:
        return episode_id(self.conversation_id, ordinal, self.agent_id)


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
        return None if self.row is None or self.row.is_complete else self.row

    @property
    def text(self) -> str:
        """The beginning of the row, for the LLM to continue."""
        lines = [summary.long_summary for summary in self.before]
        if self.continued is not None and not self.is_covered:
            lines.insert(0, self.continued.content)
        return joined(lines, self.rules)

    def request(self, episode: EpisodeClosed) -> SummaryRequest:
        """Return the request for a summary of the episode, and of the row that a new episode is put into."""
        return SummaryRequest(
            in_zone(episode.with_last_answers, self.rules.zone),
            self.text,
            self.rules.row_tokens,
            max_summary_length=self.rules.max_summary_length,
            wants_rolling=not self.is_covered,
        )

    def next_row(self, scope: str, summary: SummaryCreated, text: str, cause: Cause) -> RollingRow:
        """Return the row that replaces `continued`. Its `text` covers that row and the summaries since."""
        number, first = (self.row.row, self.row.last_ordinal) if self.row else (0, 0)
        row = self.continued or RollingRow(
            conversation_id=scope,
            row=number + 1,
            revision=0,
            cause=cause,
            content="",
            is_complete=False,
            first_ordinal=first + 1,
            last_ordinal=first,
            inputs=(),
            updated_at=summary.created_at,
        )
        return replace(
            row,
            revision=row.revision + 1,
            cause=cause,
            content=text,
            is_complete=count_tokens(text) >= self.rules.rolling_max_tokens,
            last_ordinal=summary.ordinal,
            inputs=(*row.inputs, *inputs_of((*self.before, summary))),
            updated_at=summary.created_at,
        )


class Conversations:
    """Keeps rows, title and counts consistent with the stored episodes. Every call may be repeated."""

    def __init__(self, episodes: EpisodeStore, rules: SummaryRules) -> None:
        self._episodes = episodes
        self._rules = rules

    async def grow(
        self, scope: Scope, summary: SummaryCreated, text: str | None, history: History, cause: Cause
    ) -> list[RollingRow]:
        """Put a new episode into a row, and return that row.

        `history` is from before the episode. `text` is what the LLM made of both, if it was asked to.
        """
        while not history.is_covered:
            if text is None:
                text = joined((history.text, summary.long_summary), self._rules)
            row = history.next_row(scope.id, summary, text, cause)
            if await self._episodes.put_row(row, history.continued):
                return [row]
            text, history = None, await self.history(scope, summary.ordinal)
        return await self.remake(scope, [summary.ordinal], cause)

    async def remake(self, scope: Scope, ordinals: Collection[int], cause: Cause) -> list[RollingRow]:
        """Update the rows that contain these episodes to what their long summaries say now, and return those rows.

        No LLM is asked, so that a change costs no more than its episodes.
        """
        rows = await self._episodes.rows(scope.id, min(ordinals))
        held = [row for row in rows if any(row.first_ordinal <= ordinal <= row.last_ordinal for ordinal in ordinals)]
        return [await self._remake(scope, row, cause) for row in held]

    async def _remake(self, scope: Scope, row: RollingRow, cause: Cause) -> RollingRow:
        while True:
            left = await self._between(scope, row.first_ordinal, row.last_ordinal)
            wanted, text = inputs_of([episode.summary for episode in left]), row.content
            if wanted == row.inputs and not row.cause.is_before(cause):
                return row
            if wanted != row.inputs:
                text = joined([episode.summary.long_summary for episode in left], self._rules)
            # if no episode is left, the row stays without a text: a writer that was suspended cannot put its text back
            made = replace(
                row,
                revision=row.revision + 1,
                cause=cause,
                content=text,
                inputs=wanted,
                updated_at=left[-1].summary.created_at if left else row.updated_at,
            )
            if await self._episodes.put_row(made, row):
                return made
            rows = await self._episodes.rows(scope.id, row.last_ordinal)
            row = next(other for other in rows if other.row == row.row)

    async def count(self, scope: Scope, summary: SummaryCreated, cause: Cause, history: History) -> Conversation | None:
        """Count a new episode; the first one's title is the conversation's. `history` is from before the episode."""
        known = history.conversation
        if known is None or known.last_ordinal < summary.ordinal:
            counted = counted_in(known, scope, summary, cause)
            if await self._episodes.put_conversation(counted, known):
                return counted
        return await self.recount(scope, cause)

    async def recount(self, scope: Scope, cause: Cause) -> Conversation | None:
        """Set title and counts from the stored episodes; return None if there never were any."""
        while known := await self._episodes.conversation(scope.id):
            totals = await self._episodes.totals(scope.conversation_id, scope.agent_id)
            ends = [scope.episode_id(totals.first_ordinal), scope.episode_id(totals.last_ordinal)]
            episodes = await self._episodes.lookup(ends)
            first, last = episodes.get(ends[0]), episodes.get(ends[1])
            if isinstance(first, StoredEpisode) and isinstance(last, StoredEpisode):
                counted = replace(
                    known,
                    title=first.summary.title,
                    user_id=first.summary.user_id,
                    episode_count=totals.episodes,
                    message_count=totals.messages,
                    token_count=totals.tokens,
                    last_ordinal=max(known.last_ordinal, totals.last_ordinal),
                    updated_at=last.summary.created_at,
                    last_at=last.summary.ended_at,
                )
            else:
                counted = replace(known, title="", user_id="", episode_count=0, message_count=0, token_count=0)
            if known.cause.is_before(cause):
                counted = replace(counted, cause=cause)
            if counted == known:
                return known
            counted = replace(counted, revision=known.revision + 1)
            if await self._episodes.put_conversation(counted, known):
                return counted
        return None

    async def history(self, scope: Scope, ordinal: int) -> History:
        """Read the history of the conversation before an episode."""
        row, known = await asyncio.gather(self._episodes.latest_row(scope.id), self._episodes.conversation(scope.id))
        first, is_covered = row.last_ordinal + 1 if row else 1, False
        if ordinal < first:
            row, is_covered = (await self._episodes.rows(scope.id, ordinal))[0], True
            first = row.first_ordinal
        before = await self._between(scope, max(first, ordinal - MOST_BEFORE), ordinal - 1)
        return History(self._rules, row, tuple(episode.summary for episode in before), known, is_covered=is_covered)

    async def whole(
        self, scope: Scope, conversation: Conversation, rows: Sequence[RollingRow], cause: Cause
    ) -> ConversationUpdated:
        """Return the conversation with all its rows, or the last ones that fit into a record, as `cause` left it.

        `rows` are the rows that the record concerned. If the first row reaches the last episode, it is the only row,
        and nothing is read.
        """
        if not rows or rows[0].row > 1 or rows[0].last_ordinal < conversation.last_ordinal:
            rows = await self._episodes.rows(scope.id)
        return event_of(scope, conversation, last_rows(rows), cause)

    async def _between(self, scope: Scope, first: int, last: int) -> list[StoredEpisode]:
        """Read the episodes of a range, oldest first."""
        if first > last:
            return []
        count = last - first + 1
        latest = await self._episodes.latest(scope.conversation_id, count, before=last + 1, agent_id=scope.agent_id)
        return [episode for episode in reversed(latest) if episode.ordinal >= first]


def inputs_of(summaries: Sequence[SummaryCreated]) -> tuple[tuple[int, int], ...]:
    return tuple((summary.ordinal, summary.revision) for summary in summaries)


def joined(texts: Sequence[str], rules: SummaryRules) -> str:
    """Return the texts in lines, condensed to the length of a row."""
    return condense("\n".join(filter(None, texts)), rules.row_tokens)


def counted_in(known: Conversation | None, scope: Scope, summary: SummaryCreated, cause: Cause) -> Conversation:
    """Return the conversation with one more episode at its end. Title and user come from the first episode."""
    tenant_id, updated_at = summary.tenant_id, summary.created_at
    before = known or Conversation(scope.id, 0, cause, "", "", tenant_id, 0, 0, 0, updated_at, summary.ended_at)
    return replace(
        before,
        revision=before.revision + 1,
        cause=cause,
        title=before.title if before.episode_count else summary.title,
        user_id=before.user_id if before.episode_count else summary.user_id,
        episode_count=before.episode_count + 1,
        last_ordinal=summary.ordinal,
        message_count=before.message_count + summary.message_count,
        updated_at=updated_at,
        last_at=summary.ended_at,
        token_count=before.token_count + summary.compression.tokens_before,
    )


def last_rows(rows: Sequence[RollingRow]) -> list[RollingRow]:
    """Return the last rows whose texts have at most `MAX_ROLLING_BYTES` in total."""
    sizes = accumulate(len(row.content.encode()) for row in reversed(rows))
    number = sum(1 for size in sizes if size <= MAX_ROLLING_BYTES)
    return list(rows[len(rows) - number :])


def event_of(scope: Scope, conversation: Conversation, rows: Sequence[RollingRow], cause: Cause) -> ConversationUpdated:
    """Return the event that a record causes for a conversation and these rows."""
    names = ("row", "revision", "first_ordinal", "last_ordinal")
    rolling = [RollingSummary(text=row.content, **{name: getattr(row, name) for name in names}) for row in rows]
    copied = ConversationUpdated.model_fields.keys() & vars(conversation).keys() - {"conversation_id"}
    return ConversationUpdated(
        event_id=f"{scope.id}:{cause.partition}:{cause.offset}",
        conversation_id=scope.conversation_id,
        agent_id=scope.agent_id,
        rolling=tuple(rolling),
        **{name: getattr(conversation, name) for name in copied},
    )
