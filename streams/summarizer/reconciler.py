"""Reconciles episodes: every summary is made, revised and deleted here, and nowhere else.

A record only says which episodes to look at. `reconcile` reads what the stores and the archive contain now, stores the
difference, and announces what its record changed. Each write replaces the version that was read; if another writer was
faster, everything is read and decided again. So it may be repeated, interrupted anywhere, and done by two workers at
the same time.

A record announces the revisions that it caused, however often it is handled, and no others. If its change is already in
a revision that another record caused, it makes the next revision with the same texts. Otherwise, a worker that has lost
the partition could store a revision that nobody announces.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, Literal, NamedTuple, TypeGuard, TypeVar

import structlog

from afterword.schemas import (
    Compression,
    ConversationAssigned,
    ConversationDeleted,
    ConversationUpdated,
    EpisodeAmended,
    EpisodeClosed,
    EpisodeRedo,
    InvalidRecord,
    MessageDeleted,
    MessageEdited,
    Quality,
    SummaryCreated,
    SummaryDeleted,
    Usage,
)
from afterword.schemas.base import utc_milliseconds
from afterword.schemas.episodes import ASSIGNED, Change, EpisodeFields
from afterword.schemas.ids import event_id, message_key
from afterword.schemas.summaries import REDONE
from afterword.streams.calls import Calls, add_up
from afterword.streams.errors import ProviderError
from afterword.streams.settings import Retention, Retry
from afterword.streams.steps import PUBLISH, MemoryOperation, StepRunner
from afterword.streams.stores.episodes import (
    Cause,
    Conversation,
    DeletedEpisode,
    Episode,
    EpisodeStore,
    Inputs,
    RollingRow,
    StoredEpisode,
    all_episodes,
    revisions_until,
)
from afterword.streams.stores.index import EpisodeIndex, searchable
from afterword.streams.stores.messages import ArchiveChange, ArchivedMessage, MessageArchive
from afterword.streams.summarizer.conversations import Conversations, History, Scope, event_of
from afterword.streams.summarizer.current import (
    Current,
    MessageState,
    archived,
    changed_at,
    current,
    nothing_left,
    of_event,
    of_stored,
    without_expired,
)
from afterword.streams.summarizer.embedders import Embedder, embed_messages
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import Summary, SummaryRequest, SummaryRules, is_replaceable
from afterword.streams.summarizer.timers import TRANSIENT, Clock, made_by, next_attempt, now
from afterword.streams.tasks import gather_or_cancel
from afterword_text.tokens import count_tokens

AT_A_TIME = 8
"""This many episodes of a deleted conversation are in memory at once; each may be as large as a record."""
STAGE = "summarizer"

Record = EpisodeClosed | EpisodeAmended | EpisodeRedo
Event = SummaryCreated | SummaryDeleted | ConversationUpdated
Publish = Callable[[Event], Awaitable[None]]
"""Sends an event and returns after the broker's acknowledgement."""

E = TypeVar("E", bound=Episode)

log = structlog.get_logger()


class Task(NamedTuple):
    """A record, which asks to look at some episodes, and its position."""

    record: Record
    cause: Cause

    @property
    def is_assignment(self) -> bool:
        return isinstance(self.record, EpisodeAmended) and self.record.change == ASSIGNED

    @property
    def reason(self) -> Literal["edited", "deleted", "redone"] | None:
        """Return the reason for the revisions that it makes, as it is given in their events."""
        match self.record:
            case EpisodeClosed():
                return None
            case EpisodeAmended(change=change):
                return "deleted" if change == "deleted" else "edited"
            case EpisodeRedo():
                return REDONE


class Step(Enum):
    """The action for a stored episode."""

    KEEP = "keep"
    RENEW = "renew"
    """Store the next revision with the same texts, of their present users."""
    MAKE = "make"
    """Store the next revision with new texts of the remaining messages, or a tombstone if there are none."""


class Reconciled(NamedTuple):
    """An episode as it is stored after it was handled."""

    episode: Episode
    now: Current
    history: History | None = None
    """What came before an episode that has just closed."""
    written: str | None = None
    """What the LLM wrote for the row that the episode is put into."""


class Reconciler:
    """Handles many records at a time, those of one conversation in order. Every step is retried until it succeeds."""

    def __init__(
        self,
        *,
        episodes: EpisodeStore,
        messages: MessageArchive,
        index: EpisodeIndex,
        summarizer: Summarizer,
        embedder: Embedder | None,
        publish: Publish,
        keep: Publish,
        steps: StepRunner,
        rules: SummaryRules,
        retry: Retry,
        retention: Retention | None = None,
        clock: Clock = now,
    ) -> None:
        """`keep` writes the current events to the compacted topics."""
        self._episodes = steps.retried(
            episodes,
            {"put_row": "store_rolling", "put_conversation": "store_conversation", "totals": "store_conversation"},
        )
        self._put_once = episodes.put
        self._messages = steps.retried(messages, {"assign": "store_messages", "change": "store_messages"})
        self._index = steps.retried(index, {"put": "index", "hand_over": "index", "remove": "index"})
        self._summarizer = summarizer
        self._embedder = embedder
        self._publish = publish
        self._keep = keep
        self._retry_until_success = steps.retry_until_success
        self._retry = retry
        self._retention = retention or Retention()
        self._clock = clock
        self._conversations = Conversations(self._episodes, rules)

    async def handle(self, record: Record, cause: Cause) -> None:
        """Apply a record to the stores, and announce what it changed.

        Raises: InvalidRecord if the episode is stored with other messages, if the conversation has another tenant, or
        if a changed message is unknown or its episode's messages have expired.
        """
        task = Task(record, cause)
        if isinstance(record, EpisodeClosed):
            present = await self._messages.present_users(record.conversation_id, record.tenant_id)
            closed = record.of_users(present.of) if present.moves else record
            await self.reconcile(Scope.of(record), [record.ordinal], Task(closed, cause))
            return
        held: dict[Scope, list[int]] = defaultdict(list)
        async for episode in self._concerned(record):
            held[Scope.of(episode.event)].append(episode.ordinal)
        if any(scope.tenant_id != record.tenant_id for scope in held):
            raise InvalidRecord("tenant_mismatch", "the conversation's episodes have another tenant_id")
        if isinstance(record, EpisodeAmended):
            await self._change(record, is_held=bool(held))
        for scope, ordinals in held.items():
            await self.reconcile(scope, sorted(ordinals), task)

    async def _concerned(self, record: EpisodeAmended | EpisodeRedo) -> AsyncIterator[Episode]:
        """Yield the stored episodes that a record may change. An edit or a deletion concerns the episodes with the
        message or, if the whole conversation was deleted or assigned, those that had ended before.
        """
        if isinstance(record, EpisodeRedo):
            stored = await self._lookup(record.episode_id)
            if stored is not None and stored.event.conversation_id == record.conversation_id:
                yield stored
        elif record.message_id is not None:
            for episode in await self._episodes.holding(record.conversation_id, record.message_id):
                yield episode
        else:
            async for episode in all_episodes(self._episodes, record.conversation_id):
                if episode.last_offset < record.offset:
                    yield episode

    async def _change(self, amended: EpisodeAmended, *, is_held: bool) -> None:
        """Apply a change to the archive. `is_held` tells whether a stored episode has the message.

        Raises: InvalidRecord if the message is unknown.
        """
        await self._messages.change(change_of(amended))
        if amended.message_id is None:
            return
        key = message_key(amended.conversation_id, amended.message_id, amended.tenant_id)
        state = (await self._messages.states([key], with_metadata=False)).get(key)
        if state is None and not is_held:
            raise InvalidRecord("unknown_message", "there is no such message")
        if isinstance(state, ArchivedMessage) and state.offset > amended.offset:
            raise InvalidRecord("unknown_message", "there was no such message before this change")

    # -- reconciling

    async def reconcile(self, scope: Scope, ordinals: Sequence[int], task: Task) -> None:
        """Bring a scope's episodes and rows up to date, and announce what the task's record changed.

        Raises: InvalidRecord.
        """
        if task.reason == "deleted":
            await self._take_away(scope, ordinals, task)
        mine = [each async for each in self._caused(scope, ordinals, task)]
        if not mine:
            return
        rows, conversation = await self._follow(scope, mine, task)
        events: list[Event] = [each.episode.event for each in mine]
        changed = [row for row in rows if row.cause == task.cause]
        if conversation and (changed or conversation.cause == task.cause):
            events.append(event_of(scope, conversation, changed, task.cause))
        for event in events:
            await self._retry_until_success(PUBLISH, lambda: self._publish(event))  # noqa: B023 – awaited here
        if conversation:
            whole = await self._conversations.whole(scope, conversation, rows, task.cause)
            events = [*events[: len(mine)], whole]
        for event in events:
            await self._keep(event)

    async def _caused(self, scope: Scope, ordinals: Sequence[int], task: Task) -> AsyncIterator[Reconciled]:
        """Bring episodes up to date, and yield those of which the task caused the revision."""
        for ordinal in ordinals:
            one = await self._episode(scope, ordinal, task)
            if one is None or one.episode.cause != task.cause:
                continue
            if task.is_assignment:  # there may be many episodes, so their messages are indexed and let go
                await self._find(one)
                one = one._replace(now=Current())
            yield one

    async def _take_away(self, scope: Scope, ordinals: Sequence[int], task: Task) -> None:
        """Remove texts that were made from deleted messages, before anything waits for an LLM."""
        taken: list[Reconciled] = []
        for start in range(0, len(ordinals), AT_A_TIME):
            some = ordinals[start : start + AT_A_TIME]
            made = await gather_or_cancel(*[self._episode(scope, each, task, asks=False) for each in some])
            taken += [
                each for each in made if each and each.episode.cause == task.cause and not has_texts(each.episode)
            ]
        if taken:
            await self._follow(scope, taken, task)

    async def _episode(self, scope: Scope, ordinal: int, task: Task, *, asks: bool = True) -> Reconciled | None:
        """Store the next revision of an episode if one is needed; return None if there is no such episode.

        Unless `asks`, outdated texts are only removed and no new ones are asked for.
        """
        while True:
            stored, read, history = await self._read(scope, ordinal, task)
            if stored is None and not isinstance(task.record, EpisodeClosed):
                return None
            made, written = stored, None
            match decide(stored, read, task):
                case Step.RENEW:
                    made = self._renewed(existing(stored), read, task)
                case Step.MAKE if not (read.core or read.expired):
                    made = self._deleted(stored, read, task)
                case Step.MAKE if asks:
                    made, written = await self._made(scope, stored, read, history, task)
                case Step.MAKE if has_texts(stored):
                    made = self._emptied(stored, read, task)
            made = existing(made)
            if made is stored or await self._put(made, stored) or await self._lookup(made.event.episode_id) == made:
                return Reconciled(made, read, history, written)
            # another writer was faster

    async def _made(
        self, scope: Scope, stored: Episode | None, read: Current, history: History | None, task: Task
    ) -> tuple[StoredEpisode, str | None]:
        """Return the episode with new texts, and what the LLM wrote for the row that a new episode is put into."""
        assert not isinstance(stored, DeletedEpisode)  # noqa: S101 – as `decide` says
        record = task.record
        try:
            if isinstance(record, EpisodeRedo) and read.expired:
                raise ProviderError(problem="the messages of the episode are not in the archive")
            episode = of_event(record, read) if isinstance(record, EpisodeClosed) else of_stored(existing(stored), read)
            history = history or await self._conversations.history(scope, episode.ordinal)
            wants_rolling = isinstance(record, EpisodeClosed) and not history.is_covered
            request = history.request(episode, wants_rolling=wants_rolling)
            if isinstance(record, EpisodeRedo):  # asks once, because a later record tries again
                answer = await self._summarizer.summarize_without_fallback(request)
                if answer.quality.source != "llm":
                    raise ProviderError(problem="no LLM is configured")
            else:
                answer = await self._summarized(request)
        except ProviderError as error:  # any other request is repeated until it succeeds
            log.warning("redo_skipped", stage=STAGE, error_type=error.error_type, problem=str(error))
            return self._postponed(existing(stored), error), None
        made = self._stored(stored, episode, answer, read.inputs, task)
        return made, answer.rolling_summary or None

    async def _summarized(self, request: SummaryRequest) -> Summary:
        """Return the summary, with the calls of all attempts while the episode waited for the LLM."""
        in_vain: list[Calls] = []

        async def attempt() -> Summary:
            try:
                return await self._summarizer.summarize(request)
            except ProviderError as error:
                in_vain.extend(error.calls)
                raise

        summary = await self._retry_until_success("summarize", attempt)
        return replace(summary, calls=add_up((*in_vain, *summary.calls)))

    # -- revisions

    def _stored(
        self, before: StoredEpisode | None, episode: EpisodeClosed, answer: Summary, inputs: Inputs, task: Task
    ) -> StoredEpisode:
        """Return the revision after `before` with these texts."""
        made_at, is_due = self._clock(), bool(inputs) and is_replaceable(answer.quality)
        summary = SummaryCreated(
            **revision_after(before, episode.episode_id),
            reason=task.reason,
            **{name: getattr(episode, name) for name in COPIED},
            title=answer.title,
            short_summary=answer.short_summary,
            long_summary=answer.long_summary,
            facts=answer.facts,
            message_ids=tuple(message.id for message in episode.messages),
            quality=answer.quality,
            model=answer.model,
            prompt_version=answer.prompt_version,
            usage=answer.usage,
            compression=compression(episode, count_tokens(answer.long_summary)),
            created_at=utc_milliseconds(made_at),
        )
        core_ids, overlap_ids, last_offset = identity(before, task.record)
        return StoredEpisode(
            summary=summary,
            core_ids=core_ids,
            overlap_ids=overlap_ids,
            fingerprint=episode.fingerprint,
            close_reason=episode.close_reason,
            first_offset=episode.source.first_offset,
            last_offset=last_offset,
            cause=task.cause,
            inputs=inputs,
            participants=tuple(dict.fromkeys(one.user_id for one in (*episode.messages, *episode.overlap))),
            writers=tuple(dict.fromkeys(one.user_id for one in episode.messages)),
            earlier=revisions_until(before) if before else (),
            calls=add_up((*(before.calls if before else ()), *answer.calls)),
            due_at=next_attempt(self._retry, 0, 0, made_at) if is_due else None,
        )

    def _emptied(self, stored: StoredEpisode, read: Current, task: Task) -> Episode:
        """Return the next revision, without texts."""
        quality = Quality(source=stored.summary.quality.source, reason=stored.summary.quality.reason)
        nothing = Summary("", "", "", quality=quality, **made_by(stored.summary)._asdict())
        return self._stored(stored, of_stored(stored, read), nothing, (), task)

    def _renewed(self, stored: Episode, read: Current, task: Task) -> Episode:
        """Return the next revision with the same texts, of their present users."""
        fields = revision_after(stored, stored.event.episode_id)
        if isinstance(stored, DeletedEpisode):
            return replace(stored, deletion=stored.deletion.model_copy(update=fields), cause=task.cause)
        present, summary = partial(read.present.since, offset=stored.last_offset), stored.summary
        facts = tuple(one.model_copy(update={"user_id": present(one.user_id)}) for one in summary.facts)
        fields |= {"user_id": present(summary.user_id), "facts": facts, "reason": task.reason, "usage": Usage()}
        return replace(
            stored,
            summary=summary.model_copy(update=fields),
            participants=tuple(dict.fromkeys(map(present, stored.participants))),
            writers=tuple(dict.fromkeys(map(present, stored.writers))),
            cause=task.cause,
            earlier=revisions_until(stored),
            attempt=0,
        )

    def _deleted(self, stored: Episode | None, read: Current, task: Task) -> DeletedEpisode:
        """Return the tombstone of an episode that has no messages left, or has expired."""
        event = task.record if isinstance(task.record, EpisodeClosed) else existing(stored).event
        reason: Change = "edited" if task.reason == "edited" else "deleted"
        deletion = SummaryDeleted(
            **revision_after(stored, event.episode_id),
            reason="expired" if self._has_expired(event) else reason,
            **{name: getattr(event, name) for name in ("conversation_id", "agent_id", "tenant_id", "ordinal")},
            deleted_at=utc_milliseconds(self._clock()),
        )
        return DeletedEpisode(deletion, *identity(stored, task.record), task.cause, read.inputs)

    def _postponed(self, stored: StoredEpisode, error: ProviderError) -> StoredEpisode:
        """Return the episode after a failed attempt.

        The attempt is counted, so that no other worker stores the result of the same attempt.
        """
        attempt, unusable = stored.attempt + 1, stored.unusable + (not isinstance(error, TRANSIENT))
        is_due = stored.due_at is not None or is_replaceable(stored.summary.quality)
        due_at = next_attempt(self._retry, attempt, unusable, self._clock()) if is_due else None
        calls = add_up((*stored.calls, *error.calls))
        return replace(stored, attempt=attempt, unusable=unusable, due_at=due_at, calls=calls)

    # -- rows, index and archive

    async def _follow(
        self, scope: Scope, mine: Sequence[Reconciled], task: Task
    ) -> tuple[list[RollingRow], Conversation | None]:
        """Update rows, conversation, index and archive after these episodes; return the rows and the conversation."""
        first, conversations, cause = mine[0], self._conversations, task.cause
        following: list[Coroutine[Any, Any, Any]]
        if isinstance(task.record, EpisodeClosed) and first.history and isinstance(first.episode, StoredEpisode):
            summary, history = first.episode.summary, first.history
            following = [
                conversations.grow(scope, summary, first.written, history, cause),
                conversations.count(scope, summary, cause, history),
                self._archive(task.record, first.now),
            ]
        else:
            ordinals = [each.episode.ordinal for each in mine]
            following = [conversations.remake(scope, ordinals, cause), conversations.recount(scope, cause)]
        unindexed = [] if task.is_assignment else mine
        rows, conversation, *_ = await gather_or_cancel(*following, *[self._find(each) for each in unindexed])
        return rows, conversation

    async def _find(self, made: Reconciled) -> None:
        """Index an episode, or remove it from the index if it has no texts."""
        episode, texts, embedder, vectors = made.episode, searchable(made.now.core), self._embedder, None
        if not has_texts(episode):
            await self._index.remove(episode.event.episode_id, episode.event.revision)
            return
        if made.now.expired and await self._index.hand_over(episode):
            return  # their words are still found
        if embedder:
            vectors = await self._retry_until_success("embed", lambda: embed_messages(embedder, texts))
        await self._index.put(episode, texts, vectors)

    async def _archive(self, closed: EpisodeClosed, now: Current) -> None:
        """Archive an episode's messages with its id; most of them are archived already."""
        before = self._retention.messages_before(self._clock())
        missing = [message for message in closed.messages if message.id not in now.archived]
        kept = [archived(message, closed) for message in missing if not before or message.sent_at >= before]
        keys = [message_key(closed.conversation_id, message.id, closed.tenant_id) for message in closed.messages]
        await self._messages.assign(closed.episode_id, kept, keys)

    # -- reading

    async def _read(self, scope: Scope, ordinal: int, task: Task) -> tuple[Episode | None, Current, History | None]:
        """Return an episode as it is stored, its messages as they are now, and for a newly closed one the history
        before it.
        """
        name, record = scope.episode_id(ordinal), task.record
        if isinstance(record, EpisodeClosed):  # most closed episodes are new, so everything is read at once
            return await asyncio.gather(
                self._lookup(name), self._closed(scope, record), self._conversations.history(scope, ordinal)
            )
        stored = await self._lookup(name)
        return stored, await self._current(scope, stored, record) if stored else Current(), None

    async def _closed(self, scope: Scope, closed: EpisodeClosed) -> Current:
        """Return the messages of a newly closed episode as they are now; none if it has expired."""
        if self._has_expired(closed):
            return Current()
        known = {each.id: each for each in (*closed.messages, *closed.overlap)}
        states = await self._states(scope, known)
        differing = {each: state for each, state in states.items() if state.changed != changed_at(known[each])}
        core_ids, overlap_ids, _ = identity(None, closed)
        read = current(core_ids, overlap_ids, known, differing)
        kept = (each for each, state in states.items() if state.changed >= changed_at(known[each]))
        return replace(read, archived=frozenset(kept))

    async def _current(self, scope: Scope, stored: Episode, record: EpisodeAmended | EpisodeRedo) -> Current:
        """Return a stored episode's messages as they are now; none if it has expired.

        Raises: InvalidRecord for an edit if some have expired.
        """
        if isinstance(stored, DeletedEpisode) or self._has_expired(stored.summary):
            return Current()
        is_assignment = isinstance(record, EpisodeAmended) and record.change == ASSIGNED
        if isinstance(record, EpisodeAmended) and record.message_id is None and not is_assignment:
            return nothing_left(stored.core_ids, record.offset)  # the whole conversation was deleted
        states = await self._states(scope, (*stored.core_ids, *stored.overlap_ids))
        # a message that was archived by an archiver that is behind the assignment is of the earlier user
        present = await self._messages.present_users(scope.conversation_id, scope.tenant_id)
        states = {
            name: present.own_stored(one) if isinstance(one, ArchivedMessage) else one for name, one in states.items()
        }
        read = replace(current(stored.core_ids, stored.overlap_ids, {}, states), present=present)
        if isinstance(record, EpisodeAmended) and read.expired and not is_assignment:
            return without_expired(stored, read, states, record)
        return read

    async def _states(self, scope: Scope, ids: Iterable[str]) -> dict[str, MessageState]:
        keys = {message_key(scope.conversation_id, message_id, scope.tenant_id): message_id for message_id in ids}
        states = await self._messages.states(list(keys), with_metadata=False)
        return {keys[key]: state for key, state in states.items()}

    def _has_expired(self, episode: EpisodeClosed | SummaryCreated | SummaryDeleted) -> bool:
        before = self._retention.episodes_before(self._clock())
        return before is not None and not isinstance(episode, SummaryDeleted) and episode.ended_at < before

    async def _lookup(self, episode_id: str) -> Episode | None:
        return (await self._episodes.lookup([episode_id])).get(episode_id)

    async def _put(self, episode: Episode, before: Episode | None) -> bool:
        name = episode.event.episode_id
        if isinstance(episode, DeletedEpisode):
            operation = MemoryOperation("delete_memory", name)
        else:
            operation = MemoryOperation("create_memory" if before is None else "update_memory", name)
        return await self._retry_until_success("store_episode", lambda: self._put_once(episode, before), operation)


def decide(stored: Episode | None, read: Current, task: Task) -> Step:
    """Decide what a record changes about an episode, given its stored form and its present messages.

    Raises: InvalidRecord if the episode is stored with other messages.
    """
    if stored is None:
        return Step.MAKE
    is_gone = isinstance(stored, DeletedEpisode)
    changes = dict(stored.inputs).values() if is_gone else read.changes
    match task.record:
        case EpisodeRedo() as redo:
            is_kept_here = redo.expired and bool(read.core or read.expired)
            is_current = stored.version == (redo.revision, redo.attempt)
            return Step.MAKE if is_current and not is_kept_here and not is_gone else Step.KEEP
        case EpisodeClosed() as closed:
            if isinstance(stored, StoredEpisode) and closed.fingerprint != stored.fingerprint:
                raise InvalidRecord("episode_conflict", "the episode is already stored with a different fingerprint")
            concerns = True
        case EpisodeAmended(change="assigned"):
            users = () if isinstance(stored, DeletedEpisode) else stored.participants
            present = partial(read.present.since, offset=stored.last_offset)
            return Step.RENEW if any(present(user) != user for user in users) else Step.KEEP
        case EpisodeAmended(offset=offset):
            concerns = offset in changes
    if not is_gone and read.inputs != stored.inputs:
        return Step.MAKE
    return Step.RENEW if concerns and stored.cause.is_before(task.cause) else Step.KEEP


def change_of(amended: EpisodeAmended) -> ArchiveChange:
    """Return the change to the archive that an amendment describes."""
    whose: dict[str, Any] = {"conversation_id": amended.conversation_id, "tenant_id": amended.tenant_id}
    event: MessageEdited | MessageDeleted | ConversationDeleted | ConversationAssigned
    if amended.change == ASSIGNED:
        event = ConversationAssigned(**amended.fields, **whose)
    elif amended.message_id is None:
        event = ConversationDeleted(**whose)
    elif amended.change == "deleted":
        event = MessageDeleted(id=amended.message_id, **whose)
    else:
        event = MessageEdited.model_validate({**amended.fields, "id": amended.message_id, **whose}, strict=False)
    return ArchiveChange(event, amended.partition, amended.offset)


def existing(stored: E | None) -> E:
    assert stored is not None  # noqa: S101 – only an episode that has just closed may not be stored
    return stored


def has_texts(episode: Episode | None) -> TypeGuard[StoredEpisode]:
    return isinstance(episode, StoredEpisode) and bool(episode.inputs)


def identity(stored: Episode | None, record: Record | None) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Return the parts of an episode that never change: the ids of its core and overlap, and its last log offset."""
    if isinstance(record, EpisodeClosed):
        core, overlap = (tuple(message.id for message in some) for some in (record.messages, record.overlap))
        return core, overlap, record.source.last_offset
    return (episode := existing(stored)).core_ids, episode.overlap_ids, episode.last_offset


def revision_after(before: Episode | None, episode_id: str) -> dict[str, Any]:
    """Return the ids and the number of the revision after `before`."""
    revision = before.event.revision + 1 if before else 1
    return {"event_id": event_id(episode_id, revision), "episode_id": episode_id, "revision": revision}


COPIED = tuple(EpisodeFields.model_fields.keys() - {"revision", "episode_id"})


def compression(episode: EpisodeClosed, after: int) -> Compression:
    """Compare the core messages with the long summary in tokens. The ratio is 0 if there is no text at all."""
    before = episode.token_count
    ratio = 1 - after / before if before else 0.0
    return Compression(tokens_before=before, tokens_after=after, ratio=ratio, events_before=episode.message_count)
