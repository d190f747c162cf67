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
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, Literal, NamedTuple, TypeGuard

import orjson
import structlog

from afterword.schemas import (
    Compression,
    ConversationAssigned,
    ConversationDeleted,
    ConversationUpdated,
    EpisodeAmended,
    EpisodeClosed,
    EpisodeMessage,
    EpisodeMetrics,
    EpisodeRedo,
    InvalidRecord,
    MessageCreated,
    MessageDeleted,
    MessageEdited,
    Quality,
    Source,
    SummaryCreated,
    SummaryDeleted,
    Usage,
)
from afterword.schemas.base import event_id, message_key, utc_milliseconds
from afterword.schemas.episodes import ASSIGNED, CARRIED, EpisodeFields, metrics, turns, user_of
from afterword.schemas.summaries import REDONE, Calls, add_up
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
from afterword.streams.stores.messages import (
    NEVER,
    ArchiveChange,
    ArchivedMessage,
    DeletedMessage,
    MessageArchive,
    PresentUsers,
)
from afterword.streams.summarizer.conversations import Conversations, History, Scope, event_of
from afterword.streams.summarizer.embedders import Embedder, embed_messages
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import Summary, SummaryRules, is_replaceable
from afterword.streams.summarizer.timers import TRANSIENT, Clock, made_by, next_attempt, now
from afterword.streams.tasks import gather_or_cancel
from afterword_text.tokens import count_tokens, message_tokens

AT_A_TIME = 8
"""This many episodes of a deleted conversation are in memory at once; each may be as large as a record."""
STAGE = "summarizer"

Revising = EpisodeAmended | EpisodeRedo
"""The records about episodes that are stored."""
Record = EpisodeClosed | Revising
Event = SummaryCreated | SummaryDeleted | ConversationUpdated
Publish = Callable[[Event], Awaitable[None]]
"""Sends an event and returns after the broker's acknowledgement."""

COPIED = tuple(EpisodeFields.model_fields.keys() - {"revision", "episode_id"})
ANSWERED = ("title", "short_summary", "long_summary", "facts", "quality", "model", "prompt_version", "usage")
NOWHERE = Cause("", 0, 0)

MessageState = ArchivedMessage | DeletedMessage
NOBODY_ASSIGNED = PresentUsers()
MAX_NAMES_BYTES = 700_000
"""Maximum number of bytes of JSON of an episode's message ids, flows and tools. Only edits can make it larger."""

log = structlog.get_logger()


class Step(Enum):
    """The action for a stored episode."""

    KEEP = "keep"
    RENEW = "renew"
    """Store the next revision with the same texts, of their present users."""
    MAKE = "make"
    """Store the next revision with new texts of the remaining messages, or a tombstone if there are none."""


@dataclass(frozen=True)
class Current:
    """The messages of an episode that are left."""

    core: tuple[EpisodeMessage, ...] = ()
    overlap: tuple[EpisodeMessage, ...] = ()
    inputs: Inputs = ()
    """These messages, each with the offset of its last change; if no core message is left, those that were deleted."""
    changes: frozenset[int] = frozenset()
    """Offsets of the last changes of all messages, including deleted ones."""
    expired: frozenset[str] = frozenset()
    """Ids of the core messages that the archive no longer has."""
    archived: frozenset[str] = frozenset()
    """Ids of the messages of a newly closed episode that the archive already has, perhaps with a later change."""
    present: PresentUsers = NOBODY_ASSIGNED
    """To whom the messages of a stored episode belong now."""


class Reconciled(NamedTuple):
    """An episode as it is stored after it was handled."""

    episode: Episode
    now: Current
    history: History | None
    """What came before an episode that has just closed."""
    written: str | None
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
        if isinstance(record, EpisodeClosed):
            present = await self._messages.present_users(record.conversation_id, record.tenant_id)
            await self._begin(record.of_users(present.of) if present.moves else record, cause)
            return
        held: dict[Scope, list[int]] = defaultdict(list)
        async for episode in self._concerned(record):
            held[Scope.of(episode.event)].append(episode.ordinal)
        if any(scope.tenant_id != record.tenant_id for scope in held):
            raise InvalidRecord("tenant_mismatch", "the conversation's episodes have another tenant_id")
        if isinstance(record, EpisodeAmended):
            await self._change(record, is_held=bool(held))
        for scope, ordinals in held.items():
            await self._revise(scope, sorted(ordinals), record, cause)

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

    async def _begin(self, closed: EpisodeClosed, cause: Cause) -> None:
        """Store, index and announce an episode that has just closed. Raises: InvalidRecord."""
        scope = Scope.of(closed)
        made = await self._episode(scope, closed.ordinal, closed, cause)
        if made is None:
            return
        conversations, history = self._conversations, made.history
        following: tuple[Coroutine[Any, Any, Any], ...]
        if isinstance(made.episode, StoredEpisode) and history:
            summary = made.episode.summary
            following = (
                conversations.grow(scope, summary, made.written, history, cause),
                conversations.count(scope, summary, cause, history),
                self._archive(closed, made.now),
            )
        else:
            following = conversations.remake(scope, [closed.ordinal], cause), conversations.recount(scope, cause)
        rows, conversation, *_ = await gather_or_cancel(*following, self._find(made))
        await self._announce(scope, [made.episode], rows, conversation, cause)

    async def _revise(self, scope: Scope, ordinals: Sequence[int], record: Revising, cause: Cause) -> None:
        """Bring a scope's episodes and rows up to date, and announce what the record changed.

        Texts that were made from deleted messages are removed before anything waits for an LLM. Raises: InvalidRecord.
        """
        mine: list[Episode] = []
        for asks in (False, True) if reason_of(record) == "deleted" else (True,):
            together = 1 if asks else AT_A_TIME
            chunks = [ordinals[start : start + together] for start in range(0, len(ordinals), together)]
            revised = partial(self._revised, scope, record=record, cause=cause, asks=asks)
            mine = [made for chunk in chunks for made in await gather_or_cancel(*map(revised, chunk)) if made]
            if not mine:
                continue
            remade = self._conversations.remake(scope, [episode.ordinal for episode in mine], cause)
            rows, conversation = await gather_or_cancel(remade, self._conversations.recount(scope, cause))
        if mine:
            await self._announce(scope, mine, rows, conversation, cause)

    async def _announce(
        self,
        scope: Scope,
        episodes: Sequence[Episode],
        rows: Sequence[RollingRow],
        conversation: Conversation | None,
        cause: Cause,
    ) -> None:
        events: list[Event] = [episode.event for episode in episodes]
        changed = [row for row in rows if row.cause == cause]
        if conversation and (changed or conversation.cause == cause):
            events.append(event_of(scope, conversation, changed, cause))
        for event in events:
            await self._retry_until_success(PUBLISH, lambda: self._publish(event))  # noqa: B023 – awaited here
        if conversation:
            whole = await self._conversations.whole(scope, conversation, rows, cause)
            events = [*events[: len(episodes)], whole]
        for event in events:
            await self._keep(event)

    async def _episode(
        self, scope: Scope, ordinal: int, record: Record, cause: Cause, *, asks: bool = True
    ) -> Reconciled | None:
        """Store the next revision of an episode if one is needed; return the episode if its revision has this cause.

        Unless `asks`, outdated texts are only removed and no new ones are asked for.
        """
        while True:
            stored, read, history = await self._read(scope, ordinal, record)
            if stored is None:
                return None
            made, written = stored, None
            match decide(stored, read, record, cause):
                case Step.RENEW:
                    made = renewed(stored, read, record, cause)
                case Step.MAKE if not (read.core or read.expired):
                    made = self._deleted(stored, read, record, cause)
                case Step.MAKE if asks and isinstance(stored, StoredEpisode):
                    made, written = await self._made(scope, stored, read, history, record, cause)
                case Step.MAKE if has_texts(stored):
                    made = self._emptied(stored, read, record, cause)
            if made is stored or await self._put(made, stored) or await self._lookup(made.event.episode_id) == made:
                return Reconciled(made, read, history, written) if made.cause == cause else None
            # another writer was faster

    async def _revised(
        self, scope: Scope, ordinal: int, record: Revising, cause: Cause, *, asks: bool
    ) -> Episode | None:
        """Do the same in the index; return the episode without its messages, because there may be many episodes."""
        made = await self._episode(scope, ordinal, record, cause, asks=asks)
        if made:
            await self._find(made)
        return made and made.episode

    async def _made(
        self, scope: Scope, stored: StoredEpisode, read: Current, history: History | None, record: Record, cause: Cause
    ) -> tuple[StoredEpisode, str | None]:
        """Return the episode with new texts, and what the LLM wrote for the row that a new episode is put into."""
        if isinstance(record, EpisodeRedo) and read.expired:
            missing = ProviderError(problem="the messages of the episode are not in the archive")
            return self._postponed(stored, missing, ()), None
        episode = record if isinstance(record, EpisodeClosed) else episode_of(stored, read)
        if (episode.messages, episode.overlap) != (read.core, read.overlap):  # changed since the episode closed
            episode = episode_of(stored, read)
        request = (history or await self._conversations.history(scope, stored.ordinal)).request(episode)
        if not isinstance(record, EpisodeRedo):
            answer = await self._retry_until_success("summarize", lambda: self._summarizer.summarize(request))
        else:  # asks once, because a later record tries again
            try:
                answer = await self._summarizer.summarize_without_fallback(request)
            except ProviderError as error:
                return self._postponed(stored, error, request.calls), None
            if answer.quality.source != "llm":
                return self._postponed(stored, ProviderError(problem="no LLM is configured"), ()), None
        return self._stored(stored, episode, answer, read.inputs, record, cause), answer.rolling_summary or None

    # -- revisions

    def _stored(
        self,
        before: StoredEpisode,
        episode: EpisodeClosed,
        answer: Summary,
        inputs: Inputs,
        record: Record,
        cause: Cause,
    ) -> StoredEpisode:
        """Return the revision after `before` with these texts."""
        made_at, is_due = self._clock(), bool(inputs) and is_replaceable(answer.quality)
        summary = SummaryCreated(
            **revision_after(before),
            reason=reason_of(record),
            **{name: getattr(episode, name) for name in COPIED},
            **{name: getattr(answer, name) for name in ANSWERED},
            message_ids=tuple(message.id for message in episode.messages),
            compression=compression(episode, count_tokens(answer.long_summary)),
            created_at=utc_milliseconds(made_at),
        )
        return replace(
            before,
            summary=summary,
            cause=cause,
            inputs=inputs,
            participants=tuple(dict.fromkeys(one.user_id for one in (*episode.messages, *episode.overlap))),
            writers=tuple(dict.fromkeys(one.user_id for one in episode.messages)),
            earlier=revisions_until(before) if before.summary.revision else (),
            calls=add_up((*before.calls, *answer.calls)),
            attempt=0,
            unusable=0,
            due_at=next_attempt(self._retry, 0, 0, made_at) if is_due else None,
        )

    def _emptied(self, stored: StoredEpisode, read: Current, record: Record, cause: Cause) -> Episode:
        """Return the next revision, without texts."""
        quality = Quality(source=stored.summary.quality.source, reason=stored.summary.quality.reason)
        nothing = Summary("", "", "", quality=quality, **made_by(stored.summary)._asdict())
        return self._stored(stored, episode_of(stored, read), nothing, (), record, cause)

    def _deleted(self, stored: Episode, read: Current, record: Record, cause: Cause) -> DeletedEpisode:
        """Return the tombstone of an episode that has no messages left, or has expired."""
        reason: Literal["edited", "deleted"] = "edited" if reason_of(record) == "edited" else "deleted"
        deletion = SummaryDeleted(
            **revision_after(stored),
            reason="expired" if self._has_expired(stored) else reason,
            **{name: getattr(stored.event, name) for name in ("conversation_id", "agent_id", "tenant_id", "ordinal")},
            deleted_at=utc_milliseconds(self._clock()),
        )
        return DeletedEpisode(deletion, stored.core_ids, stored.overlap_ids, stored.last_offset, cause, read.inputs)

    def _postponed(self, stored: StoredEpisode, error: ProviderError, calls: Iterable[Calls]) -> StoredEpisode:
        """Return the episode after a failed attempt to redo it.

        The attempt is counted, so that no other worker stores the result of the same attempt.
        """
        log.warning("redo_skipped", stage=STAGE, error_type=error.error_type, problem=str(error))
        attempt, unusable = stored.attempt + 1, stored.unusable + (not isinstance(error, TRANSIENT))
        is_due = stored.due_at is not None or is_replaceable(stored.summary.quality)
        due_at = next_attempt(self._retry, attempt, unusable, self._clock()) if is_due else None
        used = add_up((*stored.calls, *calls))
        return replace(stored, attempt=attempt, unusable=unusable, due_at=due_at, calls=used)

    # -- index and archive

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

    async def _read(self, scope: Scope, ordinal: int, record: Record) -> tuple[Episode | None, Current, History | None]:
        """Return an episode as it is stored, its messages as they are now, and for a newly closed one the history
        before it.
        """
        name = scope.episode_id(ordinal)
        if isinstance(record, EpisodeClosed):  # most closed episodes are new, so everything is read at once
            new = unsummarized(record)
            stored, read, history = await asyncio.gather(
                self._lookup(name), self._closed(scope, record, new), self._conversations.history(scope, ordinal)
            )
            return stored or new, read, history
        stored = await self._lookup(name)
        return stored, await self._current(scope, stored, record) if stored else Current(), None

    async def _closed(self, scope: Scope, closed: EpisodeClosed, new: StoredEpisode) -> Current:
        """Return the messages of a newly closed episode as they are now; none if it has expired."""
        if self._has_expired(new):
            return Current()
        known = {each.id: each for each in (*closed.messages, *closed.overlap)}
        states = await self._states(scope, known)
        differing = {each: state for each, state in states.items() if state.changed != changed_at(known[each])}
        read = current(new.core_ids, new.overlap_ids, known, differing)
        kept = (each for each, state in states.items() if state.changed >= changed_at(known[each]))
        return replace(read, archived=frozenset(kept))

    async def _current(self, scope: Scope, stored: Episode, record: Revising) -> Current:
        """Return a stored episode's messages as they are now; none if it has expired.

        Raises: InvalidRecord for an edit if some have expired.
        """
        if isinstance(stored, DeletedEpisode) or self._has_expired(stored):
            return Current()
        is_assignment = isinstance(record, EpisodeAmended) and record.change == ASSIGNED
        if isinstance(record, EpisodeAmended) and record.message_id is None and not is_assignment:
            return nothing_left(stored.core_ids, record.offset)  # the whole conversation was deleted
        states = await self._states(scope, (*stored.core_ids, *stored.overlap_ids))
        # a message that was archived by an archiver that is behind the assignment is of the earlier user
        present = await self._messages.present_users(scope.conversation_id, scope.tenant_id)
        states = {name: present.own_stored(one) for name, one in states.items()}
        read = replace(current(stored.core_ids, stored.overlap_ids, {}, states), present=present)
        if isinstance(record, EpisodeAmended) and read.expired and not is_assignment:
            return without_expired(stored, read, states, record)
        return read

    async def _states(self, scope: Scope, ids: Iterable[str]) -> dict[str, MessageState]:
        keys = {message_key(scope.conversation_id, message_id, scope.tenant_id): message_id for message_id in ids}
        states = await self._messages.states(list(keys), with_metadata=False)
        return {keys[key]: state for key, state in states.items()}

    def _has_expired(self, stored: Episode) -> bool:
        before = self._retention.episodes_before(self._clock())
        return before is not None and isinstance(stored, StoredEpisode) and stored.summary.ended_at < before

    async def _lookup(self, episode_id: str) -> Episode | None:
        return (await self._episodes.lookup([episode_id])).get(episode_id)

    async def _put(self, episode: Episode, stored: Episode) -> bool:
        name, before = episode.event.episode_id, stored if stored.event.revision else None
        if isinstance(episode, DeletedEpisode):
            operation = MemoryOperation("delete_memory", name)
        else:
            operation = MemoryOperation("update_memory" if before else "create_memory", name)
        return await self._retry_until_success("store_episode", lambda: self._put_once(episode, before), operation)


def reason_of(record: Record) -> Literal["edited", "deleted", "redone"] | None:
    """Return the reason for the revisions that a record makes, as it is given in their events."""
    match record:
        case EpisodeClosed():
            return None
        case EpisodeAmended(change="deleted"):
            return "deleted"
        case EpisodeAmended():
            return "edited"
        case EpisodeRedo():
            return REDONE


def decide(stored: Episode, read: Current, record: Record, cause: Cause) -> Step:
    """Decide what a record changes about an episode, given its stored form and its present messages.

    Raises: InvalidRecord if the episode is stored with other messages.
    """
    is_gone = isinstance(stored, DeletedEpisode)
    changes = dict(stored.inputs).values() if is_gone else read.changes
    match record:
        case EpisodeRedo() as redo:
            is_kept_here = redo.expired and bool(read.core or read.expired)
            is_current = stored.version == (redo.revision, redo.attempt)
            return Step.MAKE if is_current and not is_kept_here and not is_gone else Step.KEEP
        case EpisodeClosed() as closed:
            if isinstance(stored, StoredEpisode) and closed.fingerprint != stored.fingerprint:
                raise InvalidRecord("episode_conflict", "the episode is already stored with a different fingerprint")
            if not stored.event.revision:
                return Step.MAKE
            concerns = True
        case EpisodeAmended(change="assigned"):
            users = () if isinstance(stored, DeletedEpisode) else stored.participants
            present = partial(read.present.since, offset=stored.last_offset)
            return Step.RENEW if any(present(user) != user for user in users) else Step.KEEP
        case EpisodeAmended(offset=offset):
            concerns = offset in changes
    if not is_gone and read.inputs != stored.inputs:
        return Step.MAKE
    return Step.RENEW if concerns and stored.cause.is_before(cause) else Step.KEEP


def renewed(stored: Episode, read: Current, record: Record, cause: Cause) -> Episode:
    """Return the next revision with the same texts, of their present users."""
    fields = revision_after(stored)
    if isinstance(stored, DeletedEpisode):
        return replace(stored, deletion=stored.deletion.model_copy(update=fields), cause=cause)
    present, summary = partial(read.present.since, offset=stored.last_offset), stored.summary
    facts = tuple(one.model_copy(update={"user_id": present(one.user_id)}) for one in summary.facts)
    fields |= {"user_id": present(summary.user_id), "facts": facts, "reason": reason_of(record), "usage": Usage()}
    return replace(
        stored,
        summary=summary.model_copy(update=fields),
        participants=tuple(dict.fromkeys(map(present, stored.participants))),
        writers=tuple(dict.fromkeys(map(present, stored.writers))),
        cause=cause,
        earlier=revisions_until(stored),
        attempt=0,
    )


def unsummarized(closed: EpisodeClosed) -> StoredEpisode:
    """Return a newly closed episode as it is before its first revision; it is never stored."""
    return StoredEpisode(
        summary=SummaryCreated.model_construct(
            **{name: getattr(closed, name) for name in EpisodeFields.model_fields} | {"revision": 0}
        ),
        core_ids=tuple(message.id for message in closed.messages),
        overlap_ids=tuple(message.id for message in closed.overlap),
        fingerprint=closed.fingerprint,
        close_reason=closed.close_reason,
        first_offset=closed.source.first_offset,
        last_offset=closed.source.last_offset,
        cause=NOWHERE,
    )


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


def has_texts(episode: Episode) -> TypeGuard[StoredEpisode]:
    return isinstance(episode, StoredEpisode) and bool(episode.inputs)


def revision_after(before: Episode) -> dict[str, Any]:
    """Return the ids and the number of the revision after `before`."""
    episode_id, revision = before.event.episode_id, before.event.revision + 1
    return {"event_id": event_id(episode_id, revision), "episode_id": episode_id, "revision": revision}


def compression(episode: EpisodeClosed, after: int) -> Compression:
    """Compare the core messages with the long summary in tokens. The ratio is 0 if there is no text at all."""
    before = episode.token_count
    ratio = 1 - after / before if before else 0.0
    return Compression(tokens_before=before, tokens_after=after, ratio=ratio, events_before=episode.message_count)


# An episode as its messages are now: one that was deleted, or must no longer be summarized, is left out


def current(
    core_ids: Sequence[str],
    overlap_ids: Sequence[str],
    known: Mapping[str, EpisodeMessage],
    states: Mapping[str, MessageState],
) -> Current:
    """Return the messages as they are in `known`, or in `states` if they were changed there later."""
    newest = {name: _newest(known.get(name), states.get(name)) for name in (*core_ids, *overlap_ids)}
    core, overlap = (tuple(filter(None, map(newest.get, ids))) for ids in (core_ids, overlap_ids))
    changed = {name: state.changed for name, state in states.items() if state.changed != NEVER}
    living = (*core, *overlap) if core else ()
    inputs = tuple((message.id, changed_at(message)) for message in living)
    return Current(
        core=core,
        overlap=overlap,
        inputs=inputs or tuple((name, changed[name]) for name in core_ids if name in changed),
        changes=frozenset(changed.values()),
        expired=frozenset(name for name in core_ids if name not in known and name not in states),
    )


def changed_at(message: EpisodeMessage) -> int:
    """Return the offset of the message's last edit."""
    return NEVER if message.changed is None else message.changed


def _newest(known: EpisodeMessage | None, state: MessageState | None) -> EpisodeMessage | None:
    if state is None:
        return known
    if isinstance(state, DeletedMessage):
        return None
    if known is not None and state.changed <= changed_at(known):
        return known
    if state.message.skip_summarization:
        return None
    fields = {name: getattr(state.message, name) for name in CARRIED}
    return EpisodeMessage(**fields, offset=state.offset, changed=None if state.changed == NEVER else state.changed)


def nothing_left(core_ids: Iterable[str], offset: int) -> Current:
    """Return the state of an episode whose messages were all deleted at this offset."""
    return Current(inputs=tuple((name, offset) for name in core_ids), changes=frozenset([offset]))


def without_expired(
    stored: StoredEpisode, read: Current, states: Mapping[str, MessageState], amended: EpisodeAmended
) -> Current:
    """Return the result of a change to an episode that cannot be summarized again, because messages have expired.

    It stays as it is, or is deleted as a whole if a message leaves it. Raises: InvalidRecord for an effective edit.
    """
    name = amended.message_id or ""
    state = states.get(name)
    has_no_effect = isinstance(state, ArchivedMessage) and state.changed != amended.offset
    if name not in dict(stored.inputs) or has_no_effect:
        return Current(core=read.core, inputs=stored.inputs, expired=read.expired)
    leaves = isinstance(state, ArchivedMessage) and state.message.skip_summarization
    if amended.change == "edited" and not leaves:
        raise InvalidRecord("expired", "some of the episode's messages have expired in the archive: it stays as it is")
    return nothing_left([name], amended.offset)


def episode_of(stored: StoredEpisode, now: Current) -> EpisodeClosed:
    """Return an episode with the messages that are left; its fingerprint stays that of the event."""
    core, summary = now.core, stored.summary
    fields = {name: getattr(summary, name) for name in COPIED} | {
        "user_id": user_of(core),
        "started_at": min(message.sent_at for message in core),
        "ended_at": max(message.sent_at for message in core),
        "message_count": len(core),
        "metrics": bounded_metrics(core),
    }
    return EpisodeClosed(
        **fields,
        episode_id=summary.episode_id,
        revision=max(1, summary.revision),
        close_reason=stored.close_reason,
        fingerprint=stored.fingerprint,
        messages=core,
        overlap=now.overlap,
        turn_count=turns(core),
        token_count=sum(message_tokens(message.content) for message in core),
        source=Source(topic="", partition=0, first_offset=stored.first_offset, last_offset=stored.last_offset),
    )


def bounded_metrics(core: Sequence[EpisodeMessage]) -> EpisodeMetrics:
    """Return the messages' metrics, without flows and tools if a summary with them would be too long for a record."""
    measured = metrics(core)
    names = [*(message.id for message in core), *measured.flows_activated, *measured.tools_invoked]
    if len(orjson.dumps(names)) <= MAX_NAMES_BYTES:
        return measured
    return measured.model_copy(update={"flows_activated": (), "tools_invoked": ()})


def archived(message: EpisodeMessage, episode: EpisodeClosed) -> ArchivedMessage:
    """Return a message of an episode as the archive stores it, without its metadata."""
    return ArchivedMessage(
        MessageCreated(
            conversation_id=episode.conversation_id,
            tenant_id=episode.tenant_id,
            **{name: getattr(message, name) for name in CARRIED},
        ),
        partition=episode.source.partition,
        offset=episode.source.first_offset if message.offset is None else message.offset,
        changed=changed_at(message),
    )
