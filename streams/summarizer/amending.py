"""Changes of messages in stored episodes, and requests to redo their summaries: the next revision of each.

Every step may be repeated. What was done is known from the stored episodes: each records which changes its messages
had, and up to which log offset its rolling summary has all changes of the conversation.
"""

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import replace
from datetime import datetime
from typing import Any

from afterword.schemas import (
    EpisodeAmended,
    EpisodeClosed,
    EpisodeRedo,
    InvalidRecord,
    SummaryCreated,
    SummaryDeleted,
    Usage,
)
from afterword.schemas.base import utc_milliseconds
from afterword.schemas.ids import event_id, message_key
from afterword.schemas.summaries import REDONE, RevisionReason
from afterword.streams.errors import AfterwordError, ProviderError, ProviderUnavailable
from afterword.streams.settings import MOST_PENDING_EPISODES
from afterword.streams.stores.episodes import (
    NEVER,
    DeletedEpisode,
    RollingRow,
    StoredEpisode,
    agent_of_scope,
    revisions_until,
    scope_of,
    sibling_id,
    stored_episode,
)
from afterword.streams.stores.messages import ArchivedMessage, DeletedMessage, PendingDeletion
from afterword.streams.summarizer.current import Current, MessageState, from_archive, has_change, is_living
from afterword.streams.summarizer.extractive import condense
from afterword.streams.summarizer.providers import Maker
from afterword.streams.summarizer.revisions import Ask, Episode, Revisions, summary_created, summary_deleted
from afterword.streams.summarizer.rolling import TextBefore, emptied, read_text_before
from afterword.streams.summarizer.summary import is_replaceable
from afterword.streams.together import together
from afterword.streams.tokens import count_tokens

PAGE_EPISODES = 50
ENDED_TOGETHER = 8
"""Episodes of a deleted conversation that are deleted at a time: the stores have others to serve."""
WAIT_SECONDS = 5.0
"""Time for the archiver to catch up before the record is put aside: usually it is ahead."""
UNKNOWN_WAIT_SECONDS = 0.25
"""Same for a message that nobody knows: whoever sends many changes of such messages does not hold up the others."""
FIRST_WAIT_SECONDS = 0.01
LONGEST_WAIT_SECONDS = 0.5
EXPIRED = "messages of the episode have expired in the archive: it stays as it is"


class NotArchived(AfterwordError):
    """the archive does not have the change at offset {offset} yet"""

    needs: int
    """Offset of the last record that is needed: past it the archiver has rejected what is missing."""
    is_known: bool
    """The message is in the archive, or in an episode."""


class NotRedone(AfterwordError):
    """the summary stays as it is: {problem}"""


class Amendments(Revisions):
    """Makes the revisions that a change or a request asks for; those of one conversation in order."""

    def __init__(self, *, maker: Maker, wait_seconds: float = WAIT_SECONDS, **parts: Any) -> None:
        """`parts`: as of Revisions. `maker`: of the summaries that are made here. `wait_seconds`: for the archive."""
        super().__init__(**parts)
        self._maker = maker
        self._wait_seconds = wait_seconds

    async def apply(self, amended: EpisodeAmended, *, waits: bool = True) -> bool:
        """Make every revision that the change asks for, and announce them; done ones are only announced again.

        Returns whether one of them is a fallback that an LLM may replace later. `waits`: for the archive; a record that
        was put aside has waited, and holds up all that come after it on its topic.

        Raises: InvalidRecord for a message that nobody knows, or of another tenant; NotArchived.
        """
        if amended.message_id is None:
            await self._delete_conversation(amended)
            await self._settle(amended, amended.offset)
            return False
        state = await self._until_archived(amended, self._wait_seconds if waits else 0.0)
        made = [await self._amend(group, amended) for group in await self._held(amended, state)]
        await self._settle(amended, state.changed)
        return any(_is_fallback(episode) for group in made for episode in group)

    async def _settle(self, amended: EpisodeAmended, offset: int) -> None:
        """Let readers show again what was made of the conversation. `offset`: that of the deletion in the archive."""
        if amended.change == "deleted":
            whose = amended.conversation_id, amended.tenant_id
            deletion = PendingDeletion(*whose, amended.message_id, offset)
            await self._retry_until_success("store_messages", lambda: self._messages.settle(deletion))

    async def redo(self, redo: EpisodeRedo, position: str) -> None:
        """Let the LLM write the next revision of an episode, and announce it; a done one is only announced again.

        Later rolling summaries stay, as they do when an LLM replaces a fallback: nothing in them is wrong.
        `position`: of the request's record. Of several requests for one revision the one that made it announces it.

        Raises: NotRedone, ProviderError, and nothing has changed; InvalidRecord for another tenant.
        """
        if (redo.model, redo.prompt_version) != self._maker:
            raise NotRedone(problem=f"{self._maker.model} with {self._maker.prompt_version} would write it here")
        found = await self._retry_until_success("find", lambda: self._episodes.lookup(redo.episode_id))
        if not isinstance(found, StoredEpisode) or found.summary.conversation_id != redo.conversation_id:
            raise NotRedone(problem="there is no such episode")
        check_episodes_tenant([found], redo)
        made: Episode = found
        if found.summary.revision == redo.revision:
            made = await self._or_refused(found, position, self._redone(found, position))
        if not (isinstance(made, StoredEpisode) and is_answer(made.summary, redo)):
            raise NotRedone(problem="another revision is stored")
        if made.announced_by != position:
            raise NotRedone(problem="another request has led to this revision")
        await self._index_and_announce(made)
        await self._renew_conversation(made, NEVER)

    async def _redone(self, before: StoredEpisode, position: str) -> Episode:
        current = from_archive(before, await self._read_states(before))
        if current is None or current.episode is None:
            raise NotRedone(problem="its messages are not in the archive")
        ask = self._ask_without_fallback
        return await self._summarized(before, current, current.episode, REDONE, NEVER, ask, position)

    async def replace_fallbacks(self, amended: EpisodeAmended, position: str) -> None:
        """Replace the fallbacks among the revisions of a change that was applied; later texts stay.

        `position`: of the retry's record, which announces what it replaces, and nothing that an earlier one did.

        Raises: as `apply`; ProviderError.
        """
        held = await self._held(amended, await self._until_archived(amended, 0.0))
        for episode in (episode for group in held for episode in group):
            if episode.made_by != amended.offset:  # as in Pipeline.replace_fallback
                await self._forget_replies(episode, episode.ordinal)
            again = _is_fallback(episode)
            revised = self._revised(episode, amended, self._ask_without_fallback, again, position)
            made = await self._or_refused(episode, position, revised)
            if made.announced_by == position:
                await self._index_and_announce(made)
            await self._renew_conversation(made, amended.offset)

    async def _or_refused(self, episode: Episode, position: str, making: Coroutine[Any, Any, Episode]) -> Episode:
        """Make a revision that the record at this position announces. Raises: as `making`, of which nothing comes then.

        A former owner of the partition may be about to store it, or has just done so: then it is announced here.
        """
        try:
            return await making
        except (NotRedone, ProviderError):
            name = episode.event.episode_id
            found = await self._retry_until_success("store_episode", lambda: self._episodes.refuse(name, position))
            if found is None or found.announced_by != position:
                raise
            return found

    async def _held(self, amended: EpisodeAmended, state: MessageState) -> list[list[Episode]]:
        """The episodes that have the message, grouped by scope, in order. `state`: the message in the archive.

        None for an edit after its deletion, which has a record of its own. A deletion that was repeated may be the only
        one whose record came here: the segmenter had rejected the first. Episodes are read after the archive has the
        change: one that is stored later has looked there again.
        """
        if state.changed < amended.offset and amended.change == "edited":
            return []
        groups: dict[str, list[Episode]] = {}
        for episode in await self._holding(amended):
            groups.setdefault(scope_of(episode.event), []).append(episode)
        return list(groups.values())

    async def _holding(self, amended: EpisodeAmended) -> list[Episode]:
        """Read the episodes that have the message. Raises: InvalidRecord for those of another tenant."""
        message_id = amended.message_id or ""
        held = await self._retry_until_success(
            "find", lambda: self._episodes.holding(amended.conversation_id, message_id)
        )
        check_episodes_tenant(held, amended)
        return held

    async def _state(self, amended: EpisodeAmended) -> MessageState | None:
        key = message_key(amended.conversation_id, amended.message_id or "", amended.tenant_id)
        return (await self._retry_until_success("find", lambda: self._messages.states([key]))).get(key)

    async def _is_of_expired(self, amended: EpisodeAmended) -> bool:
        """Return whether the episode of the message has expired."""
        name = amended.episode_id
        if name is None:
            return False
        found = await self._retry_until_success("find", lambda: self._episodes.lookup(name))
        return isinstance(found, DeletedEpisode) and found.deletion.reason == "expired"

    async def _have_expired(self, keys: Collection[str]) -> bool:
        """Return whether nothing is stored of one of these core messages: each had its episode's id at least."""
        return bool(await self._retry_until_success("find", lambda: self._messages.missing(list(keys))))

    async def _until_archived(self, amended: EpisodeAmended, seconds: float) -> MessageState:
        """Wait until the archive has the change. Raises: InvalidRecord, NotArchived."""
        key = message_key(amended.conversation_id, amended.message_id or "", amended.tenant_id)
        clock = asyncio.get_running_loop().time
        wait, began, is_known = FIRST_WAIT_SECONDS, clock(), False
        while True:
            state = await self._state(amended)
            if state is not None and has_applied(state, amended):
                return state
            waited = clock() - began
            if not is_known and waited >= min(seconds, UNKNOWN_WAIT_SECONDS):
                is_known = state is not None or await self._is_in_episode(amended)
                if not is_known:
                    raise _not_archived(amended, is_known=False)
            if is_known and state is None and await self._have_expired([key]):
                return without_expired(amended)
            if waited >= seconds:
                raise _not_archived(amended, is_known=is_known)
            await asyncio.sleep(wait)
            wait = min(LONGEST_WAIT_SECONDS, wait * 2)

    async def _is_in_episode(self, amended: EpisodeAmended) -> bool:
        """Return whether the message is in an episode, or was in one that has expired."""
        return bool(await self._holding(amended)) or await self._is_of_expired(amended)

    async def _amend(self, held: list[Episode], amended: EpisodeAmended) -> list[Episode]:
        """Revise episodes of one scope, and what was derived from them."""
        done: list[Episode] = []
        await self._revise(held, amended, done)
        await together(*[self._finish(episode, amended) for episode in done], self._follow(done, amended))
        return done

    async def _revise(self, held: list[Episode], amended: EpisodeAmended, done: list[Episode]) -> None:
        """Revise episodes of one scope, in order; adds each to `done`."""
        for episode in held:
            made = await self._revised(episode, amended, self._ask)
            if done:  # it may have been built on their earlier texts, also if another record made theirs
                made = await self._derived_again(made, amended)
            elif isinstance(made, StoredEpisode):
                await self._mark(made, amended)
            done.append(made)

    async def _revised(
        self, episode: Episode, amended: EpisodeAmended, ask: Ask, again: bool = False, position: str | None = None
    ) -> Episode:
        """Revise the episode until it has the change. `again`: once more, though it has."""
        message_id, offset = amended.message_id or "", amended.offset
        while isinstance(episode, StoredEpisode) and (again or not has_change(episode, message_id, offset)):
            before, episode = episode, await self._next_revision(episode, amended, ask, position)
            again = again and episode.event.event_id == before.event.event_id
        return episode

    async def _next_revision(
        self, before: StoredEpisode, amended: EpisodeAmended, ask: Ask, position: str | None
    ) -> Episode:
        """Store the revision that follows, unless another writer was first; returns the one that is stored."""
        current = await self._current(before, amended)
        if current.episode is None:
            as_of = max(before.as_of, amended.offset)
            deletion = self._deletion(before.summary, amended)
            gone = DeletedEpisode(
                deletion, current.changes, as_of, amended.offset, position, last_offset=before.last_offset
            )
            return taken(gone, await self._retry_until_success("store_episode", lambda: self._episodes.remove(gone)))
        offset, change = amended.offset, amended.change
        return await self._summarized(before, current, current.episode, change, offset, ask, position)

    async def _summarized(
        self,
        before: StoredEpisode,
        current: Current,
        closed: EpisodeClosed,
        reason: RevisionReason,
        offset: int,
        ask: Ask,
        position: str | None,
    ) -> Episode:
        """Store a summary of the messages as they are now, unless another writer was first; returns what is stored.

        `offset`: that of the change; NEVER: of none. `position`: as of StoredEpisode.announced_by.
        """
        history = await self._current_history(closed)
        history = replace(history, updates=before.summary.rolling_range is not None)
        summary = summary_created(closed, await ask(history.request), self._clock(), before.summary)
        summary = history.completed(summary.model_copy(update={"reason": reason}))
        as_of = max(before.as_of, offset, history.as_of)
        made = stored_episode(closed, summary, current.changes, as_of, offset, history.sources, before)
        made = replace(made, announced_by=position)
        found = taken(made, await self._retry_until_success("store_episode", lambda: self._episodes.add(made)))
        if found != made:  # a change that came first had no such answer to forget yet
            await self._forget_replies(found, found.ordinal)
        return found

    async def _current(self, stored: StoredEpisode, amended: EpisodeAmended) -> Current:
        """Read the episode as it is now. Raises: NotArchived; InvalidRecord for an edit if messages have expired.

        An episode that a message leaves goes as a whole if others of it have expired: it cannot be made again without
        that message.
        """
        summary = stored.summary
        states = await self._read_states(stored)
        current = from_archive(stored, states)
        if current is not None:
            return current
        core = [message_key(summary.conversation_id, one, summary.tenant_id) for one in summary.message_ids]
        if not await self._have_expired(core):
            needs = max(stored.last_offset, *dict(stored.changes).values(), amended.offset)
            raise _not_archived(amended, is_known=True, needs=needs)
        message_id, state = amended.message_id or "", states.get(amended.message_id or "")
        if amended.change == "edited" and (state is None or is_living(state)):
            raise InvalidRecord("expired", EXPIRED)
        return Current(None, tuple({**dict(stored.changes), message_id: amended.offset}.items()))

    async def _read_states(self, stored: StoredEpisode) -> dict[str, MessageState]:
        ids = (*stored.summary.message_ids, *stored.overlap_ids)
        return await self._read_messages(self._messages.states, stored.summary, ids)

    async def _follow(self, done: list[Episode], amended: EpisodeAmended) -> None:
        """Rebuild what was derived from episodes that have changed: later rolling texts, rows, counts, title."""
        first, ids = done[0], {episode.event.episode_id for episode in done}
        if isinstance(first, DeletedEpisode):
            await self._take_over(first, amended)
        after = first.ordinal
        while page := await self._later(first, after):
            for episode in page:
                if episode.event.episode_id not in ids:
                    # one that it has made already is announced again: a crash may have come before that
                    await self._finish(await self._derived_again(episode, amended), amended)
            after = page[-1].ordinal
        # of an episode that came meanwhile there is an answer since
        await together(
            self._renew_conversation(first, amended.offset), self._forget_replies(first, min(e.ordinal for e in done))
        )

    async def _renew_conversation(self, first: Episode, offset: int) -> None:
        """Renew the rows, counts and title of the scope from the episodes as they are now.

        `offset`: that of the change which they have then.
        """
        await together(
            self._renew_rows(first, offset),
            self._retry_until_success("store_conversation", lambda: self._episodes.recount(first.event)),
        )

    async def _later(self, first: Episode, after: int) -> list[StoredEpisode]:
        """Read a page of the episodes after this ordinal; one that is not counted yet will look for changes itself."""
        scope = scope_of(first.event)
        known = await self._retry_until_success("find", lambda: self._episodes.conversation(scope))
        if known is not None and known.last_ordinal <= after:
            return []
        return await self._retry_until_success("find", lambda: self._episodes.later(first.event, PAGE_EPISODES, after))

    async def _take_over(self, gone: DeletedEpisode, amended: EpisodeAmended) -> None:
        """Let the episode before update the rolling summary, if the one that is gone had done so for it."""
        before = await self._latest(gone, gone.ordinal, 1)
        if not before or await self._later(gone, gone.ordinal):
            return
        if before[0].summary.rolling_range is None or _has_made_any(amended, before):
            await self._finish(await self._derived_again(before[0], amended, updates=True), amended)

    async def _latest(self, episode: Episode, before: int, limit: int) -> list[StoredEpisode]:
        event = episode.event
        agent = agent_of_scope(event)
        return await self._retry_until_success(
            "find", lambda: self._episodes.latest(event.conversation_id, limit, before=before, agent_id=agent)
        )

    async def _derived_again(self, made: Episode, amended: EpisodeAmended, updates: bool = False) -> Episode:
        """Give the episode a rolling summary of what there is now, without asking an LLM; its own texts stay.

        Does nothing if it is built on that already. That it has later changes does not say so: a change that waits for
        the archive is overtaken by them, and a request may have redone an earlier episode with it.
        """
        while isinstance(made, StoredEpisode) and made.made_by != amended.offset:
            summary = made.summary
            before = await self._retry_until_success("find", lambda: read_text_before(self._episodes, summary, None))  # noqa: B023 – awaited here
            if made.built_on == before.sources and not updates:
                await self._mark(made, amended)
                break
            if not updates and await self._is_others(made, before, amended):
                break
            derived = self._derived(made, before, amended, updates or summary.rolling_range is not None)
            made = await self._retry_until_success("store_episode", lambda: self._episodes.add(derived))  # noqa: B023 – awaited here
        return made

    async def _is_others(self, episode: StoredEpisode, before: TextBefore, amended: EpisodeAmended) -> bool:
        """Return whether all that is new before the episode is of other changes, which are not done then.

        Their records follow it here, and announce that. Made here it would not be announced if this is a former owner,
        whose successor has finished the record.
        """
        found = await self._read_now(set(episode.built_on).difference(before.sources))
        makers = {version.made_by for version in found.values()}
        return bool(makers) and makers.isdisjoint((NEVER, amended.offset))

    async def _mark(self, episode: StoredEpisode, amended: EpisodeAmended) -> None:
        """Record that its rolling summary has the change."""
        if episode.as_of < amended.offset:
            await self._retry_until_success("store_episode", lambda: self._episodes.mark(episode, amended.offset))

    def _derived(
        self, episode: StoredEpisode, before: TextBefore, amended: EpisodeAmended, updates: bool
    ) -> StoredEpisode:
        summary = episode.summary
        texts = (before.text, *(pending.long_summary for pending in before.pending), summary.long_summary)
        ordinals = (*(pending.ordinal for pending in before.pending), summary.ordinal)
        if updates or not before.text:
            text = condense("\n".join(filter(None, texts)), self._rules.rolling_max_tokens)
        else:
            text, ordinals = before.text, ()
        fields: dict[str, object] = {"reason": amended.change, "rolling_summary": text, "rolling_ordinals": ordinals}
        made = next_summary(summary, fields, self._clock())
        as_of = max(before.as_of, episode.as_of, amended.offset)
        return replace(
            episode,
            summary=made,
            as_of=as_of,
            made_by=amended.offset,
            built_on=before.sources,
            announced_by=None,
            earlier=revisions_until(episode),
        )

    async def _renew_rows(self, first: Episode, offset: int) -> None:
        """Put the texts of today into the rows of the rolling summary, which keep their numbers and ordinals."""
        scope = scope_of(first.event)
        rows = await self._retry_until_success("find", lambda: self._episodes.rows_from(scope, first.ordinal))
        for row in rows:
            await self._retry_until_success("store_rolling", lambda: self._renew_row(row, first, offset))  # noqa: B023 – awaited here

    async def _renew_row(self, row: RollingRow, first: Episode, offset: int) -> None:
        known: RollingRow | None = row
        while known is not None:
            renewed = await self._renewed(known, first, offset)
            if renewed == known or await self._episodes.put_row(renewed, after=known):
                return
            rows = await self._episodes.rows_from(known.conversation_id, known.last_ordinal)
            known = next((found for found in rows if found.row == row.row), None)

    async def _renewed(self, row: RollingRow, first: Episode, offset: int) -> RollingRow:
        """The row as it is to be, without a text if nothing is left that it was made of."""
        last = await self._episodes.lookup(sibling_id(first.event, row.last_ordinal))
        episodes = [last] if isinstance(last, StoredEpisode) and last.summary.rolling_range else []
        episodes = episodes or await self._latest(first, row.last_ordinal + 1, MOST_PENDING_EPISODES)
        source = next((e for e in episodes if e.summary.rolling_range is not None), None)
        if source is None:
            return emptied(row, offset)
        content = source.summary.rolling_summary
        if content == row.content and row.as_of >= offset:
            return row
        return replace(
            row,
            content=content,
            token_count=count_tokens(content),
            updated_at=source.summary.created_at,
            last_revision=max(row.last_revision, last.event.revision if last else 1),
            as_of=max(row.as_of, source.as_of, offset),
        )

    async def _delete_conversation(self, amended: EpisodeAmended) -> None:
        """Delete every episode that was closed before; those that came later have another beginning, and stay."""
        ended: dict[str, Episode] = {}
        after: str | None = None
        while page := await self._page(amended, after):
            check_episodes_tenant(page, amended)
            await together(*[self._end(episode, amended, ended) for episode in page])
            after = page[-1].event.episode_id
        for scope, last in ended.items():
            await self._forget_replies(last, 0)
            rows = await self._retry_until_success("find", lambda: self._episodes.rows_from(scope, 0))  # noqa: B023 – awaited here
            for row in rows:
                if row.last_ordinal <= last.ordinal:
                    await self._retry_until_success("store_rolling", lambda: self._renew_row(row, last, amended.offset))  # noqa: B023 – awaited here
            await self._retry_until_success("store_conversation", lambda: self._episodes.recount(last.event))  # noqa: B023 – awaited here

    async def _page(self, amended: EpisodeAmended, after: str | None) -> list[Episode]:
        return await self._retry_until_success(
            "find", lambda: self._episodes.of_conversation(amended.conversation_id, after, ENDED_TOGETHER)
        )

    async def _end(self, episode: Episode, amended: EpisodeAmended, ended: dict[str, Episode]) -> None:
        """Delete an episode of before the change, and announce it. `ended`: gets the last of each scope."""
        if (gone := await self._gone(episode, amended)) is not None:
            known = ended.get(scope_of(gone.event), gone)
            ended[scope_of(gone.event)] = max(known, gone, key=lambda e: e.ordinal)

    async def _gone(self, episode: Episode, amended: EpisodeAmended) -> DeletedEpisode | None:
        """Delete and announce as `_end`; None for an episode of after the change."""
        while isinstance(episode, StoredEpisode):
            if episode.last_offset > amended.offset:
                return None
            deletion, offset = self._deletion(episode.summary, amended), amended.offset
            gone = DeletedEpisode(deletion, (), offset, offset, last_offset=episode.last_offset)
            episode = await self._retry_until_success("store_episode", lambda: self._episodes.remove(gone))  # noqa: B023 – awaited here
        if episode.as_of > amended.offset:
            return None
        await self._finish(episode, amended)
        return episode

    async def _finish(self, episode: Episode, amended: EpisodeAmended) -> None:
        """Index and announce the episode, if the record of this change has made it."""
        if episode.made_by == amended.offset and episode.announced_by is None:
            await self._index_and_announce(episode)

    async def _index_and_announce(self, episode: Episode) -> None:
        if isinstance(episode, DeletedEpisode):
            await self._remove_point(episode.deletion)
        else:
            summary = episode.summary
            states = await self._read_messages(self._messages.states, summary, summary.message_ids)
            living = {one: state.message.content for one, state in states.items() if isinstance(state, ArchivedMessage)}
            await self._put_point(summary, living)
        await self._announce(episode)

    def _deletion(self, before: SummaryCreated, amended: EpisodeAmended) -> SummaryDeleted:
        return summary_deleted(before, before.revision + 1, before.event_id, amended.change, self._clock())


def has_applied(state: MessageState, amended: EpisodeAmended) -> bool:
    """Return whether the archive has the change, or will never have it as it has a deletion.

    Raises: InvalidRecord for the message of another tenant, and for one that came after the change.
    """
    if not isinstance(state, ArchivedMessage):
        return True
    if state.message.tenant_id != amended.tenant_id:
        raise InvalidRecord("tenant_mismatch", "the message has another tenant_id")
    if state.offset > amended.offset:
        raise InvalidRecord("unknown_message", "there was no such message before it")
    return state.changed >= amended.offset


def without_expired(amended: EpisodeAmended) -> MessageState:
    """Return the state of a message that has expired: as deleted, if it was. Raises: InvalidRecord for an edit."""
    if amended.change == "edited":
        raise InvalidRecord("expired", EXPIRED)
    return DeletedMessage(amended.offset)


def is_answer(summary: SummaryCreated, redo: EpisodeRedo) -> bool:
    """Tell whether the summary is the one that the request led to."""
    return summary.reason == REDONE and summary.supersedes == event_id(redo.episode_id, redo.revision)


def check_episodes_tenant(episodes: Collection[Episode], asked: EpisodeAmended | EpisodeRedo) -> None:
    """Raises: InvalidRecord."""
    if any(episode.event.tenant_id != asked.tenant_id for episode in episodes):
        raise InvalidRecord("tenant_mismatch", "the conversation's episodes have another tenant_id")


def next_summary(before: SummaryCreated, fields: dict[str, object], created_at: datetime) -> SummaryCreated:
    """Build the next revision of a summary, with these fields; no LLM was asked for it."""
    revision = before.revision + 1
    return before.model_copy(
        update={
            "event_id": event_id(before.episode_id, revision),
            "revision": revision,
            "episode_revision": before.made_from,
            "supersedes": before.event_id,
            "title_changed": False,
            "usage": Usage(),
            "created_at": utc_milliseconds(created_at),
            **fields,
        }
    )


def _has_made_any(amended: EpisodeAmended, episodes: Collection[Episode]) -> bool:
    return any(episode.made_by == amended.offset for episode in episodes)


def taken(made: Episode, found: Episode) -> Episode:
    """Return what is stored. Raises: ProviderUnavailable if that is older: the store refuses what was made.

    Its record has come before, and nothing was to come of it: it has to be tried from another position.
    """
    if found.event.revision < made.event.revision:
        raise ProviderUnavailable(problem="the record was given up before")
    return found


def _is_fallback(episode: Episode) -> bool:
    return isinstance(episode, StoredEpisode) and is_replaceable(episode.summary.quality)


def _not_archived(amended: EpisodeAmended, *, is_known: bool, needs: int | None = None) -> NotArchived:
    needs = amended.offset if needs is None else needs
    return NotArchived(offset=amended.offset, is_known=is_known, needs=needs)
