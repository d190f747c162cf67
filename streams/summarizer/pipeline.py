"""The pipeline of a closed episode: summarize, store, index, announce.

Every step is idempotent. The first stored summary wins: a later attempt, or a second worker, takes it and repeats the
steps after it, so a crash between any two steps leaves nothing undone.
"""

import asyncio
from dataclasses import replace
from typing import Any

from afterword.schemas import EpisodeClosed, SummaryCreated, SummaryDeleted
from afterword.schemas.ids import message_key
from afterword.streams.errors import EpisodeConflict
from afterword.streams.settings import Retention
from afterword.streams.stores.episodes import NEVER, DeletedEpisode, StoredEpisode, scope_of, stored_episode
from afterword.streams.summarizer.current import Current, MessageState, laid_over, without_deleted
from afterword.streams.summarizer.revisions import Revisions, summary_created, summary_deleted
from afterword.streams.summarizer.rolling import History, next_row
from afterword.streams.summarizer.summary import Summary, is_replaceable
from afterword.streams.together import together


class Pipeline(Revisions):
    """Processes many episodes at a time, those of one conversation in order."""

    def __init__(self, *, retention: Retention | None = None, **parts: Any) -> None:
        """`parts`: as in `Revisions`."""
        super().__init__(**parts)
        self._retention = retention or Retention()

    async def process(self, episode: EpisodeClosed) -> SummaryCreated | SummaryDeleted:
        """Summarize and store the episode and announce its summary; every step is retried until it succeeds.

        What the archive knows by then of edits and deletions is in the summary; an episode of which no message is left
        is deleted.

        Raises: EpisodeConflict.
        """
        # concurrently: most episodes are new and need both
        stored, history, current = await asyncio.gather(
            self._lookup(episode), self._read_history(episode), self._current(episode)
        )
        while isinstance(stored, StoredEpisode | None) and (stored is None or _is_older(stored, episode)):
            if current.episode is None:
                stored = await self._add_deleted(episode, current, stored)
                break
            history = replace(history, episode=current.episode)
            answer = await self._ask(history.request)
            stored = await self._add(history, answer, stored, current)
            if isinstance(stored, StoredEpisode) and _is_older(stored, episode):
                history = await self._read_history(episode)  # another writer has taken the summary's revision
        return await self._finish(episode, stored, history, current)

    async def replace_fallback(self, episode: EpisodeClosed) -> None:
        """Replace the episode's fallback by the LLM's summary; does nothing if there is no such fallback any more.

        Raises: ProviderError, and nothing has changed; EpisodeConflict.
        """
        stored = await self._lookup(episode)
        if not isinstance(stored, StoredEpisode) or stored.summary.made_from != episode.revision:
            return  # erased, deleted, or closed again
        # read after what is stored: a change that is not in it by then will have a revision of its own
        current, history = await self._current(episode), None
        found: StoredEpisode | DeletedEpisode = stored
        if is_replaceable(stored.summary.quality):
            if current.episode is None:
                return  # the deletion's own record ends it
            history = replace(await self._read_history(episode), episode=current.episode)
            answer = await self._ask_without_fallback(history.request)
            found = await self._add(history, answer, stored, current)
        await self._finish(episode, found, history, current)

    async def _lookup(self, episode: EpisodeClosed) -> StoredEpisode | DeletedEpisode | None:
        return await self._retry_until_success("find", lambda: self._episodes.lookup(episode.episode_id))

    async def _current(self, episode: EpisodeClosed) -> Current:
        """Lay the changes that the archive knows over the episode."""
        return laid_over(episode, await self._changed(episode))

    async def _changed(self, episode: EpisodeClosed) -> dict[str, MessageState]:
        """Read the episode's messages that the archive knows to be changed, by id."""
        ids = [message.id for message in (*episode.messages, *episode.overlap)]
        return await self._read_messages(self._messages.changed, episode, ids)

    async def left_of(self, episode: EpisodeClosed) -> EpisodeClosed | None:
        """The episode without messages that were deleted, the same object if none was; None if no core is left."""
        return without_deleted(episode, await self._changed(episode))

    async def _add(
        self, history: History, answer: Summary, before: StoredEpisode | None, current: Current
    ) -> StoredEpisode | DeletedEpisode:
        """Store the summary unless another one was first; returns the one that is stored."""
        summary = summary_created(history.episode, answer, self._clock(), before.summary if before else None)
        as_of = max(history.as_of, before.as_of if before else NEVER)
        completed, sources = history.completed(summary), history.sources
        made = stored_episode(history.episode, completed, current.changes, as_of, built_on=sources)
        return await self._retry_until_success("store_episode", lambda: self._episodes.add(made))

    async def _add_deleted(
        self, episode: EpisodeClosed, current: Current, before: StoredEpisode | None
    ) -> StoredEpisode | DeletedEpisode:
        """Store that nothing is left of the episode."""
        revision = max(episode.revision, before.summary.revision + 1 if before else 1)
        supersedes = before.summary.event_id if before else None
        deletion = summary_deleted(episode, revision, supersedes, "deleted", self._clock())
        gone = DeletedEpisode(deletion, current.changes, max(offset for _, offset in current.changes))
        return await self._retry_until_success("store_episode", lambda: self._episodes.remove(gone))

    async def _finish(
        self,
        episode: EpisodeClosed,
        stored: StoredEpisode | DeletedEpisode,
        history: History | None,
        current: Current,
    ) -> SummaryCreated | SummaryDeleted:
        """Store everything else and announce. `history`: of the conversation, if it was just read."""
        if isinstance(stored, DeletedEpisode):
            await self._remove_point(stored.deletion)
        else:
            check_same(episode, stored)
            if stored.summary.made_from == episode.revision:  # else a later one is stored, and its texts stay
                await self._store_the_rest(episode, stored, current, history)
        if is_announced_by_episode(stored):
            await self._announce(stored)
        return stored.event

    async def _store_the_rest(
        self, episode: EpisodeClosed, stored: StoredEpisode, current: Current, history: History | None
    ) -> None:
        """Write concurrently: each write is fenced by its own version and reads none of the others."""
        summary, expired = stored.summary, self._expired(episode)
        kept = [one for one in summary.message_ids if one not in expired]
        keys = [message_key(summary.conversation_id, one, summary.tenant_id) for one in kept]
        living = current.episode.messages if current.episode else ()
        await together(
            self._retry_until_success("store_rolling", lambda: self._store_rolling(stored, history)),
            self._retry_until_success("store_conversation", lambda: self._episodes.advance(summary)),
            self._retry_until_success("store_messages", lambda: self._messages.assign(summary.episode_id, keys)),
            self._put_point(summary, (message.content for message in living)),
        )

    def _expired(self, episode: EpisodeClosed) -> set[str]:
        """Select messages that the archive does not keep any more: a label would be all that is there of them."""
        before = self._retention.messages_before(self._clock())
        return {one.id for one in episode.messages if before and one.sent_at < before}

    async def _store_rolling(self, stored: StoredEpisode, history: History | None) -> None:
        summary, scope = stored.summary, scope_of(stored.summary)
        # the row that was read for the summary is most likely still the latest; if not, nothing is written
        latest = history.latest_row if history else await self._episodes.latest_row(scope)
        while row := next_row(latest, summary, self._rules.rolling_max_tokens, stored.as_of):
            if await self._episodes.put_row(row, after=latest):
                return
            latest = await self._episodes.latest_row(scope)


def _is_older(stored: StoredEpisode, episode: EpisodeClosed) -> bool:
    return stored.summary.made_from < episode.revision


def is_announced_by_episode(stored: StoredEpisode | DeletedEpisode) -> bool:
    """Return whether a record of the episode made this revision; a change, or a request, announces its own."""
    if isinstance(stored, DeletedEpisode):
        return stored.made_by == NEVER
    return stored.summary.reason is None


def check_same(episode: EpisodeClosed, stored: StoredEpisode) -> None:
    """Raises: EpisodeConflict if the same revision is stored for other messages."""
    if stored.summary.made_from == episode.revision and stored.fingerprint != episode.fingerprint:
        raise EpisodeConflict(episode_id=episode.episode_id, revision=episode.revision)
