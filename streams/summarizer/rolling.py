"""The rolling summary of a conversation: the history it is made from, when it is updated, and its rows."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from typing import NamedTuple, TypeVar

from afterword.schemas import EpisodeClosed, EpisodeMessage, SummaryCreated
from afterword.schemas.ids import event_id, revision_of
from afterword.streams.settings import MOST_PENDING_EPISODES
from afterword.streams.stores.episodes import (
    NEVER,
    Conversation,
    DeletedEpisode,
    EpisodeStore,
    EpisodeVersion,
    RollingRow,
    StoredEpisode,
    agent_of_scope,
    scope_of,
    sibling_id,
)
from afterword.streams.summarizer.summary import MAX_SUMMARY_LENGTH, SummaryRequest
from afterword.streams.tokens import count_tokens

PENDING_TOKENS = 2000
"""Most tokens of the pending episodes' long summaries; above that, their short summaries are used."""


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


@dataclass(frozen=True)
class History:
    """A conversation before an episode, read once for each summary: request and stored rows must agree."""

    episode: EpisodeClosed
    rules: SummaryRules
    latest_row: RollingRow | None
    """The conversation's last row when it was read."""
    row: RollingRow | None
    """The row that the episode's rolling summary follows; None also for an older episode that is summarized again."""
    rolling_summary: str
    """The text of the last update; empty before the first one."""
    pending: tuple[SummaryCreated, ...]
    """Summaries since that update, oldest first."""
    conversation: Conversation | None
    as_of: int = NEVER
    """`rolling_summary` has all changes of the conversation up to this log offset."""
    sources: tuple[str, ...] = ()
    """Same as in TextBefore."""
    updates: bool | None = None
    """True if this episode is to update the rolling summary, False if not; None: as the rules say."""

    @property
    def is_due(self) -> bool:
        """True if this episode updates the rolling summary: there is enough new, or no text yet."""
        if self.updates is not None:
            return self.updates or not self.rolling_summary
        count = len(self.pending) + 1
        tokens = self.episode.token_count + sum(summary.compression.tokens_before for summary in self.pending)
        enough = count >= self.rules.min_new_episodes and tokens >= self.rules.min_tokens
        return enough or not self.rolling_summary or count >= MOST_PENDING_EPISODES

    @property
    def request(self) -> SummaryRequest:
        return SummaryRequest(
            in_zone(self.episode, self.rules.zone),
            self.text,
            longest_text(self.row, self.rules.rolling_max_tokens),
            max_summary_length=self.rules.max_summary_length,
            wants_rolling=self.is_due,
        )

    @property
    def text(self) -> str:
        """The rolling summary, and a line for each pending episode."""
        long = [summary.long_summary for summary in self.pending]
        fits = count_tokens("\n".join(long)) <= PENDING_TOKENS
        lines = long if fits else [summary.short_summary for summary in self.pending]
        return "\n".join(line for line in (self.rolling_summary, *lines) if line)

    def completed(self, summary: SummaryCreated) -> SummaryCreated:
        """Add the fields about the conversation; the rolling summary is carried over while no update is due."""
        ordinals = tuple(summary.ordinal for summary in (*self.pending, summary))
        rolling = {"rolling_ordinals": ordinals} if self.is_due else self._carried
        return summary.model_copy(update={**rolling, "title_changed": self._changes_title(summary)})

    @property
    def _carried(self) -> dict[str, object]:
        return {"rolling_ordinals": (), "rolling_summary": self.rolling_summary}

    def _changes_title(self, summary: SummaryCreated) -> bool:
        """Return whether the conversation gets another title when it advances to this summary."""
        known = self.conversation
        if known is None:
            return True
        later = (known.last_ordinal, known.last_revision) < (summary.ordinal, summary.revision)
        return later and known.title != summary.title


async def read_history(episodes: EpisodeStore, episode: EpisodeClosed, rules: SummaryRules) -> History:
    """Read a conversation as of before the episode. Raises: StoreUnavailable."""
    scope = scope_of(episode)
    latest, conversation = await asyncio.gather(episodes.latest_row(scope), episodes.conversation(scope))
    row = row_before(episode, latest, conversation)
    before = await read_text_before(episodes, episode, row)
    return History(episode, rules, latest, row, before.text, before.pending, conversation, before.as_of, before.sources)


async def read_current_history(episodes: EpisodeStore, episode: EpisodeClosed, rules: SummaryRules) -> History:
    """Read a conversation as of before the episode from its episodes alone: rows are made anew only after them.

    Raises: StoreUnavailable.
    """
    scope = scope_of(episode)
    latest, conversation, before = await asyncio.gather(
        episodes.latest_row(scope), episodes.conversation(scope), read_text_before(episodes, episode, None)
    )
    row = row_before(episode, latest, conversation)
    return History(episode, rules, latest, row, before.text, before.pending, conversation, before.as_of, before.sources)


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


def row_before(
    episode: EpisodeClosed, latest: RollingRow | None, conversation: Conversation | None
) -> RollingRow | None:
    """Return the row that the episode's rolling summary follows, given the latest one."""
    if conversation is not None and conversation.tenant_id != episode.tenant_id:
        return None  # as the segmenter's state was lost, somebody else started it over: their text stays theirs
    # an older episode that is summarized again: later rows do not belong to its history
    return latest if latest is not None and latest.last_ordinal < episode.ordinal else None


class TextBefore(NamedTuple):
    """The last update of the rolling summary before an episode, and the summaries since, oldest first."""

    text: str
    pending: tuple[SummaryCreated, ...]
    as_of: int
    update: str | None
    """Event id of the summary with that update."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Event ids of all these summaries."""
        return (*([self.update] if self.update else []), *(summary.event_id for summary in self.pending))


async def read_text_before(
    episodes: EpisodeStore, episode: EpisodeClosed | SummaryCreated, row: RollingRow | None
) -> TextBefore:
    """`row`: the last one that ends before the episode, if it is known. Raises: StoreUnavailable."""
    pending: list[SummaryCreated] = []
    as_of = NEVER
    async for stored in _episodes_before(episodes, episode, row.last_ordinal if row else 0):
        as_of = max(as_of, stored.as_of)
        if isinstance(stored, DeletedEpisode):
            continue
        if stored.summary.rolling_range:
            update = stored.summary
            return TextBefore(update.rolling_summary, tuple(pending[::-1]), as_of, update.event_id)
        pending.append(stored.summary)
    if row is None or not row.content:
        return TextBefore("", tuple(pending[::-1]), max(as_of, row.as_of) if row else as_of, None)
    of_row = event_id(sibling_id(episode, row.last_ordinal), row.last_revision)
    return TextBefore(row.content, tuple(pending[::-1]), max(as_of, row.as_of), of_row)


async def _episodes_before(
    episodes: EpisodeStore, episode: EpisodeClosed | SummaryCreated, after: int
) -> AsyncIterator[StoredEpisode | DeletedEpisode]:
    """The last episodes of its tenant before the episode, newest first, down to the ordinal `after`.

    Those next to it one by one: most often the first one is enough. There may be many deleted ones; what was before
    them is read past them.
    """
    oldest = max(after, episode.ordinal - MOST_PENDING_EPISODES)
    for ordinal in range(episode.ordinal - 1, oldest, -1):
        stored = await episodes.lookup(sibling_id(episode, ordinal))
        if isinstance(stored, StoredEpisode) and stored.summary.tenant_id != episode.tenant_id:
            return
        if stored is not None:
            yield stored
    if oldest == after:
        return
    agent = agent_of_scope(episode)
    earlier = await episodes.latest(episode.conversation_id, MOST_PENDING_EPISODES, before=oldest + 1, agent_id=agent)
    for stored in earlier:
        if stored.ordinal <= after or stored.summary.tenant_id != episode.tenant_id:
            return
        yield stored


def has_changed_since(made: StoredEpisode, source: str, now: EpisodeVersion) -> bool:
    """Return whether a change of messages has made a newer revision of a summary on which an episode is built.

    `source`: the event id of that summary, as in `built_on`; `now`: of its episode. An LLM that replaces a fallback of
    no change, and expiry, change nothing. `made.as_of` alone does not say it: later changes overtake one that waits.
    """
    if revision_of(source)[1] == now.revision:
        return False
    if now.ended is not None:
        return now.ended != "expired"
    return now.as_of > made.as_of or now.made_by not in (NEVER, made.made_by)


def longest_text(latest: RollingRow | None, max_tokens: int) -> int:
    """Return the most tokens of the text after `latest`.

    While that row is continued, a quarter more than `max_tokens`: only a text longer than that ends a row. The text of
    a new row is condensed to three quarters, so that the row has room to grow.
    """
    return max_tokens * 5 // 4 if latest is None or _continues(latest, max_tokens) else max_tokens * 3 // 4


def next_row(
    latest: RollingRow | None, summary: SummaryCreated, max_tokens: int, as_of: int = NEVER
) -> RollingRow | None:
    """Return the row to write after `latest`; None when the summary's ordinal is covered, unless it is revised.

    None also when the text was carried over: a row's range has only the episodes that its text covers.

    The text always covers the whole conversation. It replaces that of the latest row while that one is shorter than
    `max_tokens`; then it starts a new row, and the old one stays as the text as of its last ordinal.
    `as_of`: of the summary's rolling text, as in StoredEpisode.
    """
    if summary.rolling_range is None:
        return None
    if latest is not None and summary.ordinal <= latest.last_ordinal:
        return _revised(latest, summary, as_of)
    row = _row(summary, summary.rolling_range, 1 if latest is None else latest.row + 1, as_of)
    if latest is not None and _continues(latest, max_tokens):
        return replace(row, row=latest.row, first_ordinal=latest.first_ordinal if latest.content else row.first_ordinal)
    return row


def emptied(row: RollingRow, as_of: int) -> RollingRow:
    """The row when nothing is left that it was made of: all episodes up to its last one are gone.

    It stays, without its text, and as another revision: else a writer that was suspended would put its text back.
    """
    if not row.content and row.as_of >= as_of:
        return row
    return replace(row, content="", token_count=0, last_revision=row.last_revision + 1, as_of=max(row.as_of, as_of))


def _revised(latest: RollingRow, summary: SummaryCreated, as_of: int) -> RollingRow | None:
    """Replace the text if this is a higher revision of the row's last episode; later texts keep what they have."""
    if summary.ordinal < latest.last_ordinal or summary.revision <= latest.last_revision:
        return None
    ordinals = latest.first_ordinal, latest.last_ordinal
    return _row(summary, ordinals, latest.row, max(latest.as_of, as_of))


def _continues(latest: RollingRow, max_tokens: int) -> bool:
    return latest.token_count < max_tokens


def _row(summary: SummaryCreated, ordinals: tuple[int, int], number: int, as_of: int) -> RollingRow:
    return RollingRow(
        conversation_id=scope_of(summary),
        row=number,
        content=summary.rolling_summary,
        token_count=count_tokens(summary.rolling_summary),
        first_ordinal=ordinals[0],
        last_ordinal=ordinals[1],
        updated_at=summary.created_at,
        last_revision=summary.revision,
        as_of=as_of,
    )
