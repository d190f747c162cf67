"""The pipeline of a closed episode: summarize, store, index, announce.

Every step is idempotent. The first stored summary wins: a later attempt, or a second worker, takes it and repeats the
steps after it, so a crash between any two steps leaves nothing undone.

A change of an earlier episode may be handled meanwhile, as one that had to wait is. Whoever handles it sees every
episode that is stored by then; so a summary is compared with what it was made of when it is stored, before it is
announced; and before it is stored as well if the LLM took its time: then fewer revisions are superseded unannounced.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeGuard

from afterword.schemas import EpisodeClosed, EpisodeMessage, SummaryCreated, SummaryDeleted
from afterword.schemas.ids import message_key
from afterword.streams.errors import EpisodeConflict
from afterword.streams.settings import Retention
from afterword.streams.stores.episodes import (
    NEVER,
    DeletedEpisode,
    EpisodeVersion,
    StoredEpisode,
    scope_of,
    stored_episode,
)
from afterword.streams.summarizer.current import (
    ChangeOffsets,
    Current,
    MessageState,
    MessageStates,
    laid_over,
    without_deleted,
)
from afterword.streams.summarizer.providers import ExtractiveProvider
from afterword.streams.summarizer.revisions import Ask, Episode, Revisions, summary_created, summary_deleted
from afterword.streams.summarizer.rolling import History, has_changed_since, next_row
from afterword.streams.summarizer.summary import Summary, SummaryRequest, is_replaceable
from afterword.streams.together import together

CHANGED = "changed_meanwhile"
"""`quality.reason` of a summary that the extractive method made because there were changes during each answer."""
MOST_ASKED = 2
"""Answers of an LLM to one record. The extractive method stands in if there were changes during each of them.

A change asks for the episode of its message, and for the one whose overlap has it.
"""
QUICK_SECONDS = 0.05
"""Duration of an answer below which its summary is stored without another look: the one after that finds the same."""


class Basis(NamedTuple):
    """All that a summary is made of."""

    history: History
    current: Current


class Pipeline(Revisions):
    """Processes many episodes at a time, those of one conversation in order."""

    def __init__(
        self, *, retention: Retention | None = None, quick_seconds: float = QUICK_SECONDS, **parts: Any
    ) -> None:
        """`parts`: as in `Revisions`. `quick_seconds`: as QUICK_SECONDS."""
        super().__init__(**parts)
        self._quick_seconds = quick_seconds
        self._retention = retention or Retention()

    async def process(self, episode: EpisodeClosed) -> SummaryCreated | SummaryDeleted:
        """Summarize and store the episode and announce its summary; every step is retried until it succeeds.

        What the archive knows by then of edits and deletions is in the summary; an episode of which no message is left
        is deleted.

        Raises: EpisodeConflict.
        """
        # concurrently: most episodes are new and need both
        stored, basis = await asyncio.gather(self._lookup(episode), self._read_basis(episode))
        asks, unannounced = self._asks(), None
        if stored is None or _is_older(stored, episode):
            stored, basis = await self._make(episode, stored, basis, asks)
        now, newer = await self._store_the_rest(episode, stored, basis)
        while isinstance(stored, StoredEpisode) and (newer is not None or now != stored):
            unannounced = stored if is_announced_by_episode(stored) else unannounced
            if newer is not None:
                stored, basis = await self._make(episode, stored, newer, asks)
                now, newer = await self._store_the_rest(episode, stored, basis)
            else:  # a change came between, and its record does the rest
                if isinstance(now, DeletedEpisode) and now.deletion.reason == "expired":
                    await self._unfollow(stored)  # which has no record
                stored = now
                now, newer = await self._follow_and_look(episode, stored, basis.history)
        if unannounced is not None and not is_announced_by_episode(stored):
            await self._announce(unannounced)  # what is stored supersedes it
        return await self._announced(stored)

    async def replace_fallback(self, episode: EpisodeClosed) -> None:
        """Replace the episode's fallback by the LLM's summary; does nothing if there is no such fallback any more.

        Raises: ProviderError, and nothing has changed; EpisodeConflict.
        """
        stored = await self._lookup(episode)
        if stored is not None and stored.event.revision > episode.revision:
            # an attempt that was killed may have cached an answer of before a change, after the record of the change
            await self._forget_replies(stored, stored.ordinal)
        if not isinstance(stored, StoredEpisode) or stored.summary.made_from != episode.revision:
            return  # erased, deleted, or closed again
        # read after what is stored: a change that is not in it by then will have a revision of its own
        basis = await self._read_basis(episode)
        found: Episode = stored
        if is_replaceable(stored.summary.quality):
            if basis.current.episode is None:
                return  # the deletion's own record ends it
            made = await self._made(basis, self._ask_without_fallback, stored)
            made = replace(made, changes=await self._all_changes(episode, stored, made))
            found = await self._add(made)
            if found != made:
                await self._forget_replies(stored, stored.ordinal)  # a change that came first had no such answer yet
        await self._store_the_rest(episode, found, basis)  # a change that came since has a record of its own
        await self._announced(found)

    async def _all_changes(self, episode: EpisodeClosed, before: StoredEpisode, made: StoredEpisode) -> ChangeOffsets:
        """Changes of what was in the episode `before` too: the record of one may come when others are built on it."""
        had = {*before.summary.message_ids, *before.overlap_ids} - {*made.summary.message_ids, *made.overlap_ids}
        states = await self._changed(episode, sorted(had))
        known = dict(before.changes) | {one: state.changed for one, state in states.items()}
        return tuple((known | dict(made.changes)).items())

    async def _make(
        self, episode: EpisodeClosed, before: StoredEpisode | None, basis: Basis, asks: Iterator[Ask]
    ) -> tuple[Episode, Basis]:
        """Store the next revision, of what there is when its answer has come, unless another one was first.

        Returns the one that is stored. `before`: one of an earlier close, or one that is not announced.
        """
        clock = asyncio.get_running_loop().time
        for ask in asks:
            if basis.current.episode is None:
                return await self._add_deleted(episode, basis.current, before), basis
            asked = clock()
            made = await self._made(basis, ask, before)
            if before is not None:
                supersedes = last_announced(before, episode.revision)
                made = replace(made, summary=made.summary.model_copy(update={"supersedes": supersedes}))
            if clock() - asked >= self._quick_seconds:
                ids = (*made.summary.message_ids, *made.overlap_ids)
                states, sources = await asyncio.gather(self._changed(episode, ids), self._read_now(made.built_on))
                newer = await self._newer(episode, made, states, sources)
                if newer is not None:
                    basis = newer
                    await self._forget_replies(made, made.ordinal)
                    continue
                made = replace(made, as_of=newest(made, sources))
            stored = await self._add(made)
            if not _is_older(stored, episode):
                return stored, basis
            before = stored  # another writer has taken the summary's revision
        raise AssertionError("there is always one more")

    def _asks(self) -> Iterator[Ask]:
        return chain(repeat(self._ask, MOST_ASKED), repeat(self._extract))

    async def _extract(self, request: SummaryRequest) -> Summary:
        """Make a summary without the LLM, to be replaced by it later."""
        summary = await ExtractiveProvider().summarize(request)
        if self._summarizer.name == ExtractiveProvider.name:
            return summary
        return replace(summary, quality=summary.quality.model_copy(update={"reason": CHANGED}))

    async def _follow_and_look(
        self, episode: EpisodeClosed, stored: Episode, history: History
    ) -> tuple[Episode, Basis | None]:
        """Let the conversation follow, and only then look again: what a change stores later finds all that followed."""
        await self._follow(stored, history)
        if isinstance(stored, StoredEpisode) and stored.summary.made_from == episode.revision:
            return await self._look_again(episode, stored)
        return stored, None

    async def _look_again(self, episode: EpisodeClosed, stored: StoredEpisode) -> tuple[Episode, Basis | None]:
        """Read what is stored by now, and what it would be made of now if that is newer and no record of a change's.

        Changes after its last message come after the episode on its topic: their own records make a revision, and
        announce it. A revision that is made here may be that of a former owner, which announces nothing any more.
        """
        own = stored.summary.event_id
        changed, sources = await asyncio.gather(
            self._changed(episode, stored.overlap_ids), self._read_now((own, *stored.built_on))
        )
        states = {one: state for one, state in changed.items() if state.changed <= episode.source.last_offset}
        now = sources.pop(own, None)
        if now is not None and now.revision != stored.summary.revision:
            return await self._lookup(episode) or stored, None
        if not is_announced_by_episode(stored):
            return stored, None
        newer = await self._newer(episode, stored, states, sources)
        if newer is not None:
            await self._forget_replies(stored, stored.ordinal)
        elif (as_of := newest(stored, sources)) > stored.as_of:
            await self._retry_until_success("store_episode", lambda: self._episodes.mark(stored, as_of))
        return stored, newer

    async def _newer(
        self, episode: EpisodeClosed, made: StoredEpisode, states: MessageStates, sources: Mapping[str, EpisodeVersion]
    ) -> Basis | None:
        """Read what the episode would be made of now; None if that is what it was made of.

        `states`: of its messages that were changed; `sources`: the episodes on whose summaries it is built, as they are
        now.
        """
        known = dict(made.changes)
        changed = any(state.changed > known.get(one, NEVER) for one, state in states.items())
        if changed or any(has_changed_since(made, source, now) for source, now in sources.items()):
            newer = Basis(*await asyncio.gather(self._current_history(episode), self._current(episode)))
            if (newer.history.sources, newer.current.changes) != (made.built_on, made.changes):
                return newer
        return None

    async def _lookup(self, episode: EpisodeClosed) -> Episode | None:
        """Most are new, and the version of what is not there takes less than the episode."""
        name = episode.episode_id
        if name not in await self._retry_until_success("find", lambda: self._read_versions([name])):
            return None
        return await self._retry_until_success("find", lambda: self._episodes.lookup(name))

    async def _read_basis(self, episode: EpisodeClosed) -> Basis:
        return Basis(*await asyncio.gather(self._read_history(episode), self._current(episode)))

    async def _current(self, episode: EpisodeClosed) -> Current:
        """Lay the changes that the archive knows over the episode."""
        return laid_over(episode, await self._changed(episode))

    async def _changed(self, episode: EpisodeClosed, ids: Iterable[str] | None = None) -> dict[str, MessageState]:
        """Read those messages that the archive knows to be changed, by id. `ids`: all of the episode unless given."""
        if ids is None:
            ids = [message.id for message in (*episode.messages, *episode.overlap)]
        return await self._read_messages(self._read_changed, episode, ids) if ids else {}

    async def left_of(self, episode: EpisodeClosed) -> EpisodeClosed | None:
        """The episode without messages that were deleted, the same object if none was; None if no core is left."""
        return without_deleted(episode, await self._changed(episode))

    async def _made(self, basis: Basis, ask: Ask, before: StoredEpisode | None) -> StoredEpisode:
        """Ask for the revision after `before`. Raises: what `ask` raises."""
        history, current = basis
        assert current.episode is not None  # noqa: S101 – callers ask that first
        history = replace(history, episode=current.episode)
        answer = await ask(history.request)
        summary = summary_created(history.episode, answer, self._clock(), before.summary if before else None)
        as_of = max(history.as_of, before.as_of if before else NEVER)
        completed, sources = history.completed(summary), history.sources
        return stored_episode(history.episode, completed, current.changes, as_of, built_on=sources, before=before)

    async def _add(self, made: StoredEpisode) -> Episode:
        """Store the revision unless another one was first; returns the one that is stored."""
        return await self._retry_until_success("store_episode", lambda: self._episodes.add(made))

    async def _add_deleted(self, episode: EpisodeClosed, current: Current, before: StoredEpisode | None) -> Episode:
        """Store that nothing is left of the episode."""
        revision = max(episode.revision, before.summary.revision + 1 if before else 1)
        supersedes = last_announced(before, episode.revision) if before else None
        deletion = summary_deleted(episode, revision, supersedes, "deleted", self._clock())
        as_of = max(offset for _, offset in current.changes)
        gone = DeletedEpisode(deletion, current.changes, as_of, last_offset=episode.source.last_offset)
        return await self._retry_until_success("store_episode", lambda: self._episodes.remove(gone))

    async def _announced(self, stored: Episode) -> SummaryCreated | SummaryDeleted:
        if is_announced_by_episode(stored):
            await self._announce(stored)
        return stored.event

    async def _store_the_rest(
        self, episode: EpisodeClosed, stored: Episode, basis: Basis
    ) -> tuple[Episode, Basis | None]:
        """Store all that follows from what is stored, unless a later close was; returns as `_look_again`.

        The writes are concurrent: each is fenced by its own version and reads none of the others.

        Raises: EpisodeConflict.
        """
        if isinstance(stored, DeletedEpisode):
            await self._remove_point(stored.deletion)
            return stored, None
        check_same(episode, stored)
        if stored.summary.made_from != episode.revision:
            return stored, None
        summary, expired = stored.summary, self._expired(episode)
        kept = [one for one in summary.message_ids if one not in expired]
        keys = [message_key(summary.conversation_id, one, summary.tenant_id) for one in kept]
        living = await self._living(episode, stored, basis.current)
        found: tuple[Episode, Basis | None]
        found, *_ = await together(
            self._follow_and_look(episode, stored, basis.history),
            self._retry_until_success("store_messages", lambda: self._messages.assign(summary.episode_id, keys)),
            self._put_point(summary, {message.id: message.content for message in living}),
        )
        return found

    async def _living(self, episode: EpisodeClosed, stored: StoredEpisode, read: Current) -> Sequence[EpisodeMessage]:
        """Return the messages to be indexed with what is stored, which another writer may have made of newer ones.

        `read`: the episode as it was read last.
        """
        known = dict(read.changes)
        if any(known.get(one, NEVER) < offset for one, offset in stored.changes):
            read = await self._current(episode)
        return read.episode.messages if read.episode else ()

    async def _follow(self, stored: Episode, history: History) -> None:
        """Let the conversation follow its last episode. `history`: of it, as it was read last."""
        if isinstance(stored, StoredEpisode):
            summary = stored.summary
            await together(
                self._retry_until_success("store_rolling", lambda: self._store_rolling(stored, history)),
                self._retry_until_success("store_conversation", lambda: self._episodes.advance(summary)),
            )

    async def _unfollow(self, gone: StoredEpisode) -> None:
        """Let the conversation follow no longer an episode that has expired since it was stored."""
        if not await self._retry_until_success("store_conversation", lambda: self._episodes.end_conversation(gone)):
            await self._retry_until_success("store_conversation", lambda: self._episodes.recount(gone.event))

    def _expired(self, episode: EpisodeClosed) -> set[str]:
        """Select messages that the archive does not keep any more: a label would be all that is there of them."""
        before = self._retention.messages_before(self._clock())
        return {one.id for one in episode.messages if before and one.sent_at < before}

    async def _store_rolling(self, stored: StoredEpisode, history: History) -> None:
        summary, scope = stored.summary, scope_of(stored.summary)
        # the row that was read for the summary is most likely still the latest; if not, nothing is written
        latest = history.latest_row
        while row := next_row(latest, summary, self._rules.rolling_max_tokens, stored.as_of):
            if await self._episodes.put_row(row, after=latest):
                return
            latest = await self._episodes.latest_row(scope)


def _is_older(stored: Episode, episode: EpisodeClosed) -> TypeGuard[StoredEpisode]:
    return isinstance(stored, StoredEpisode) and stored.summary.made_from < episode.revision


def newest(made: StoredEpisode, sources: Mapping[str, EpisodeVersion]) -> int:
    """Return the log offset up to which an episode that is built on these has all changes."""
    return max((made.as_of, *(source.as_of for source in sources.values())))


def last_announced(before: StoredEpisode, revision: int) -> str | None:
    """Return the event id that the next summary supersedes, for readers that may not have heard of the one before.

    `revision`: that of the episode's record. What the record made is announced when nothing newer is left to be made.
    """
    return before.summary.event_id if before.summary.made_from < revision else before.summary.supersedes


def is_announced_by_episode(stored: StoredEpisode | DeletedEpisode) -> bool:
    """Return whether a record of the episode made this revision; a change, or a request, announces its own."""
    if isinstance(stored, DeletedEpisode):
        return stored.made_by == NEVER
    return stored.summary.reason is None


def check_same(episode: EpisodeClosed, stored: StoredEpisode) -> None:
    """Raises: EpisodeConflict if the same revision is stored for other messages."""
    if stored.summary.made_from == episode.revision and stored.fingerprint != episode.fingerprint:
        raise EpisodeConflict(episode_id=episode.episode_id, revision=episode.revision)
