"""Stores in memory, which pass the same contract tests as the real ones (tests/contract/stores)."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from afterword.schemas import ConversationDeleted, MessageDeleted
from afterword.schemas.base import EPOCH
from afterword.schemas.ids import message_key
from afterword.streams.stores.arguments import require, require_texts, require_within
from afterword.streams.stores.documents import archived_key
from afterword.streams.stores.episodes import (
    Conversation,
    DeletedEpisode,
    Episode,
    EpisodeRef,
    EpisodeVersion,
    RollingRow,
    StoredEpisode,
    Totals,
    id_prefix,
)
from afterword.streams.stores.erasures import ErasedConversation, Erasure
from afterword.streams.stores.keys import ApiKey
from afterword.streams.stores.messages import (
    NEVER,
    ArchiveChange,
    ArchivedMessage,
    Authors,
    Counted,
    DeletedMessage,
    MessageRef,
    MessageText,
    Selection,
    agent_scope,
    sort_key,
)
from afterword.streams.tokens import count_tokens

ARCHIVERS = ("metadata", "is_continuation")
"""Fields of a message that only the archiver has."""


class MemoryEpisodes:
    """EpisodeQueries."""

    def __init__(self) -> None:
        self.episodes: dict[str, StoredEpisode] = {}
        self.deleted: dict[str, DeletedEpisode] = {}
        self.all_rows: dict[str, list[RollingRow]] = {}
        self.known: dict[str, Conversation] = {}

    async def lookup(self, episode_ids: Sequence[str]) -> dict[str, Episode]:
        require_texts(episode_ids=episode_ids)
        found: dict[str, Episode] = {**self.episodes, **self.deleted}
        return {name: found[name] for name in episode_ids if name in found}

    async def put(self, episode: Episode, before: Episode | None) -> bool:
        name = episode.event.episode_id
        known = self.deleted.get(name) or self.episodes.get(name)
        if (known and known.version) != (before and before.version):
            return False
        self.episodes.pop(name, None)
        self.deleted.pop(name, None)
        if isinstance(episode, StoredEpisode):
            self.episodes[name] = episode
        else:
            self.deleted[name] = episode
        return True

    async def holding(self, conversation_id: str, message_id: str) -> list[Episode]:
        require(str, conversation_id=conversation_id, message_id=message_id)
        every = self._everything(conversation_id)
        return sorted((e for e in every if message_id in (*e.core_ids, *e.overlap_ids)), key=lambda e: e.ordinal)

    async def page(self, after: str | None, limit: int, conversation_id: str | None = None) -> list[Episode]:
        require(str | None, after=after, conversation_id=conversation_id)
        require(int, limit=limit)
        require_within(1, limit=limit)
        found = [e for e in self._everything(conversation_id) if after is None or e.event.episode_id > after]
        return sorted(found, key=lambda e: e.event.episode_id.encode())[:limit]

    async def latest(
        self, conversation_id: str, limit: int, *, before: int | None = None, agent_id: str | None = None
    ) -> list[StoredEpisode]:
        require(int, limit=limit)
        require_within(1, limit=limit)
        require(int | None, before=before)
        found = [e for e in self._of_scope(conversation_id, agent_id) if before is None or e.summary.ordinal < before]
        return sorted(found, key=lambda e: -e.summary.ordinal)[:limit]

    async def expired(self, before: datetime, limit: int) -> list[Episode]:
        require(datetime, before=before)
        require(int, limit=limit)
        require_within(1, limit=limit)
        ages = [(e.ended_at, e) for e in self.deleted.values() if e.ended_at is not None]
        found: list[tuple[datetime, Episode]] = [*ages, *((e.summary.ended_at, e) for e in self.episodes.values())]
        return [e for at, e in sorted(found, key=lambda one: one[0]) if at < before][:limit]

    async def due(self, now: datetime, limit: int) -> list[StoredEpisode]:
        require(datetime, now=now)
        require(int, limit=limit)
        require_within(1, limit=limit)
        found = [(e.due_at, e) for e in self.episodes.values() if e.due_at is not None and e.due_at <= now]
        return [e for _, e in sorted(found, key=lambda one: one[0])][:limit]

    async def latest_row(self, scope: str) -> RollingRow | None:
        rows = await self.rows(scope)
        return rows[-1] if rows else None

    async def rows(self, scope: str, ordinal: int = 0) -> list[RollingRow]:
        require(str, scope=scope)
        require(int, ordinal=ordinal)
        return [row for row in self.all_rows.get(scope, ()) if row.last_ordinal >= ordinal]

    async def put_row(self, row: RollingRow, before: RollingRow | None) -> bool:
        rows = self.all_rows.setdefault(row.conversation_id, [])
        known = next((one for one in rows if one.row == row.row), None)
        if (known and known.revision) != (before and before.revision):
            return False
        self.all_rows[row.conversation_id] = sorted([*(r for r in rows if r is not known), row], key=lambda r: r.row)
        return True

    async def conversation(self, scope: str) -> Conversation | None:
        require(str, id=scope)
        return self.known.get(scope)

    async def put_conversation(self, conversation: Conversation, before: Conversation | None) -> bool:
        known = self.known.get(conversation.conversation_id)
        if (known and known.revision) != (before and before.revision):
            return False
        self.known[conversation.conversation_id] = conversation
        return True

    async def totals(self, conversation_id: str, agent_id: str | None = None) -> Totals:
        found = [episode.summary for episode in self._of_scope(conversation_id, agent_id)]
        if not found:
            return Totals()
        ordinals = [summary.ordinal for summary in found]
        return Totals(
            len(found),
            sum(summary.message_count for summary in found),
            sum(summary.compression.tokens_before for summary in found),
            min(ordinals),
            max(ordinals),
        )

    async def conversations_of(self, user_id: str, tenant_id: str | None, after: str | None, limit: int) -> list[str]:
        summaries = (
            stored.summary
            for stored in self.episodes.values()
            if user_id in (stored.summary.user_id, *stored.participants)
        )
        owned = {summary.conversation_id for summary in summaries if summary.tenant_id == tenant_id}
        return _page(owned, user_id, tenant_id, after, limit)

    async def taken_part_in(
        self, conversation_ids: Sequence[str], user_id: str, tenant_id: str | None
    ) -> dict[str, int]:
        require_texts(conversation_ids=conversation_ids)
        require(str, user_id=user_id)
        require(str | None, tenant_id=tenant_id)
        summaries = [
            stored.summary
            for stored in self.episodes.values()
            if user_id in (stored.summary.user_id, *stored.participants) and stored.summary.tenant_id == tenant_id
        ]
        return dict(Counter(s.conversation_id for s in summaries if s.conversation_id in conversation_ids))

    async def count(self, after: str | None = None) -> int:
        require(str | None, after=after)
        return sum(after is None or name > after for name in (*self.episodes, *self.deleted))

    def _everything(self, conversation_id: str | None) -> list[Episode]:
        every: list[Episode] = [*self.episodes.values(), *self.deleted.values()]
        return [e for e in every if conversation_id in (None, e.event.conversation_id)]

    async def versions(self, episode_ids: Sequence[str]) -> dict[str, EpisodeVersion]:
        found = await self.lookup(episode_ids)
        gone = {name: one.deletion.reason for name, one in found.items() if isinstance(one, DeletedEpisode)}
        return {name: EpisodeVersion(one.event.revision, gone.get(name)) for name, one in found.items()}

    async def conversations(
        self, user_id: str, tenant_id: str | None, limit: int, before: tuple[datetime, str] | None = None
    ) -> list[Conversation]:
        require(str, user_id=user_id)
        require(str | None, tenant_id=tenant_id)
        require(int, limit=limit)
        require_within(1, limit=limit)
        if before is not None:
            require(datetime, before=before[0])
            require(str, before=before[1])
        living = [known for known in self.known.values() if known.episode_count]
        owned = [known for known in living if (known.user_id, known.tenant_id) == (user_id, tenant_id)]
        found = [known for known in owned if before is None or _place(known) < (before[0], before[1].encode())]
        return sorted(found, key=_place, reverse=True)[:limit]

    def _of_scope(self, conversation_id: str, agent_id: str | None) -> list[StoredEpisode]:
        require(str, conversation_id=conversation_id)
        require(str | None, agent_id=agent_id)
        prefix = id_prefix(conversation_id, agent_id)
        return [episode for i, episode in self.episodes.items() if i.startswith(prefix)]

    async def users_of(self, conversation_id: str) -> set[str]:
        require(str, conversation_id=conversation_id)
        living = [one for one in self._everything(conversation_id) if isinstance(one, StoredEpisode)]
        return {user for one in living for user in (*one.participants, one.summary.user_id)}

    async def all_episodes(self) -> AsyncIterator[EpisodeRef | DeletedEpisode]:
        for gone in list(self.deleted.values()):
            yield gone
        for stored in list(self.episodes.values()):
            summary = stored.summary
            yield EpisodeRef(
                episode_id=summary.episode_id,
                revision=summary.revision,
                conversation_id=summary.conversation_id,
                ordinal=summary.ordinal,
                fingerprint=stored.fingerprint,
                message_ids=summary.message_ids,
                inputs=stored.inputs,
                tenant_id=summary.tenant_id,
                agent_id=summary.agent_id,
            )


def _place(known: Conversation) -> tuple[datetime, bytes]:
    return known.updated_at, known.conversation_id.encode()


class MemoryMessages:
    """A MessageArchive."""

    def __init__(self) -> None:
        self.messages: dict[str, ArchivedMessage] = {}
        self.episode_ids: dict[str, str] = {}
        self.agent_scopes: dict[str, set[str]] = {}
        self.deleted: dict[str, DeletedMessage] = {}
        self.metadata: dict[str, int] = {}
        """Messages whose metadata the archiver has written, with the offset of that."""

    async def put_many(self, messages: Sequence[ArchivedMessage]) -> None:
        for archived in messages:
            key = archived_key(archived)
            if key in self.deleted or key in self.metadata:
                continue
            known = self.messages.get(key)
            if known is None or known.changed == NEVER:
                self.messages[key] = archived
            else:
                own = {name: getattr(archived.message, name) for name in ARCHIVERS}
                self._set(key, own)
            self.metadata[key] = archived.offset

    async def change(self, change: ArchiveChange) -> None:
        event, offset = change.event, change.offset
        if isinstance(event, ConversationDeleted):
            for key, archived in list(self.messages.items()):
                message = archived.message
                same = (message.conversation_id, message.tenant_id) == (event.conversation_id, event.tenant_id)
                if same and archived.offset < offset:
                    self._delete(key, offset)
            return
        key = message_key(event.conversation_id, event.id, event.tenant_id)
        known = self.messages.get(key)
        if known is None or known.offset >= offset:
            return
        if isinstance(event, MessageDeleted):
            self._delete(key, offset)
            return
        changes = event.changes
        metadata = changes.pop("metadata", None)
        if changes and known.changed <= offset:
            self._set(key, changes, offset)
        if metadata is not None and self.metadata.get(key, NEVER) <= offset:
            self._set(key, {"metadata": metadata})
            self.metadata[key] = offset

    def _set(self, key: str, fields: dict[str, Any], offset: int | None = None) -> None:
        known = self.messages[key]
        changed = known.changed if offset is None else offset
        self.messages[key] = replace(known, message=known.message.model_copy(update=fields), changed=changed)

    def _delete(self, key: str, offset: int) -> None:
        self.messages.pop(key, None)
        self.episode_ids.pop(key, None)
        self.agent_scopes.pop(key, None)
        self.deleted[key] = DeletedMessage(offset)

    async def states(self, keys: Sequence[str]) -> dict[str, ArchivedMessage | DeletedMessage]:
        require_texts(keys=keys)
        known: dict[str, ArchivedMessage | DeletedMessage] = {**self.messages, **self.deleted}
        return {key: known[key] for key in keys if key in known}

    async def changed(self, keys: Sequence[str]) -> dict[str, ArchivedMessage | DeletedMessage]:
        return {key: state for key, state in (await self.states(keys)).items() if state.changed >= 0}

    async def assign(self, episode_id: str, messages: Sequence[ArchivedMessage]) -> None:
        require(str, episode_id=episode_id)
        for one in messages:
            key = archived_key(one)
            self.episode_ids[key] = episode_id
            if scope := agent_scope(episode_id):
                self.agent_scopes.setdefault(key, set()).add(scope)
            known = self.messages.get(key)
            if key not in self.deleted and (known is None or known.changed < one.changed):
                own = {name: getattr(known.message, name) for name in ARCHIVERS} if known else {}
                self.messages[key] = replace(one, message=one.message.model_copy(update=own))

    async def newest(self, selection: Selection) -> AsyncGenerator[ArchivedMessage, None]:
        for archived in sorted(self._selected(selection), key=sort_key, reverse=True):
            yield archived

    async def count(self, selection: Selection) -> Counted:
        found = [archived.message for archived in self._selected(selection)]
        tokens = sum(count_tokens(message.content) for message in found)
        return Counted(len(found), tokens, sum(message.skip_summarization for message in found))

    async def conversations_of(self, user_id: str, tenant_id: str | None, after: str | None, limit: int) -> list[str]:
        found = [m.message for m in self.messages.values()]
        owned = {m.conversation_id for m in found if (m.user_id, m.tenant_id) == (user_id, tenant_id)}
        return _page(owned, user_id, tenant_id, after, limit)

    async def authors(self, conversation_ids: Sequence[str], user_id: str, tenant_id: str | None) -> dict[str, Authors]:
        require_texts(conversation_ids=conversation_ids)
        require(str, user_id=user_id)
        require(str | None, tenant_id=tenant_id)
        found = [m.message for m in self.messages.values() if m.message.tenant_id == tenant_id]
        users = {i: [m.user_id for m in found if m.conversation_id == i] for i in conversation_ids}
        return {
            i: Authors(own := sum(user == user_id for user in those), len(those) - own)
            for i, those in users.items()
            if those
        }

    async def first(self, conversation_id: str) -> ArchivedMessage | None:
        require(str, conversation_id=conversation_id)
        found = [m for m in self.messages.values() if m.message.conversation_id == conversation_id]
        return min(found, key=lambda archived: archived.offset, default=None)

    def _selected(self, selection: Selection) -> list[ArchivedMessage]:
        return [m for key, m in self.messages.items() if _selects(selection, m) and self._is_selected(selection, key)]

    def _is_selected(self, selection: Selection, key: str) -> bool:
        if not selection.unsummarised:
            return True
        if selection.agent_id is None:
            return key not in self.episode_ids
        return id_prefix(selection.conversation_id, selection.agent_id).removesuffix(":") not in self.agent_scopes.get(
            key, ()
        )

    async def get_many(self, keys: Sequence[str]) -> dict[str, ArchivedMessage]:
        require_texts(keys=keys)
        return {key: self.messages[key] for key in keys if key in self.messages}

    async def texts(self, keys: Sequence[str], characters: int) -> dict[str, MessageText]:
        found = {key: archived.message for key, archived in (await self.get_many(keys)).items()}
        return {
            key: MessageText(
                m.content[:characters],
                m.role,
                m.sent_at or EPOCH,
                {"user": m.user_id, "assistant": m.agent_id}.get(m.role),
            )
            for key, m in found.items()
        }

    async def expire(self, before: datetime, limit: int) -> int:
        require(datetime, before=before)
        require(int, limit=limit)
        require_within(1, limit=limit)
        sent = {key: archived.message.sent_at for key, archived in self.messages.items()}
        older = sorted((at, key) for key, at in sent.items() if at and at < before)[:limit]
        for _, key in older:
            for part in (self.messages, self.episode_ids, self.agent_scopes):
                part.pop(key, None)
        return len(older)

    def _all_keys(self) -> set[str]:
        return self.messages.keys() | self.episode_ids.keys() | self.deleted.keys()

    async def count_all(self) -> int:
        return len(self._all_keys())

    async def all_messages(self) -> AsyncIterator[MessageRef]:
        for key in self._all_keys():
            archived = self.messages.get(key)
            yield MessageRef(
                key=key,
                episode_id=self.episode_ids.get(key),
                skipped=archived is not None and archived.message.skip_summarization,
                source=(archived.partition, archived.offset) if archived else None,
                content=archived.message.content if archived else None,
                deleted=key in self.deleted,
                changed=(archived or self.deleted[key]).changed if archived or key in self.deleted else -1,
            )


def _page(owned: set[str], user_id: str, tenant_id: str | None, after: str | None, limit: int) -> list[str]:
    require(str, user_id=user_id)
    require(str | None, tenant_id=tenant_id, after=after)
    require(int, limit=limit)
    require_within(1, limit=limit)
    ids = sorted((i for i in owned if after is None or i.encode() > after.encode()), key=str.encode)
    return ids[:limit]


def _selects(selection: Selection, archived: ArchivedMessage) -> bool:
    """Return whether the message matches the selection, `unsummarised` aside."""
    message = archived.message
    return (
        message.conversation_id == selection.conversation_id
        and message.tenant_id == selection.tenant_id
        and (selection.agent_id is None or message.agent_id in (None, selection.agent_id))
        and selection.user_id in (None, message.user_id)
        and (selection.before is None or archived.offset < selection.before)
    )


class MemoryKeys:
    """ApiKeys."""

    def __init__(self) -> None:
        self.kept: dict[str, ApiKey] = {}
        self.looked_up = 0

    async def put(self, key: ApiKey) -> None:
        self.kept[key.digest] = key

    async def find(self, digest: str) -> ApiKey | None:
        require(str, id=digest)
        self.looked_up += 1
        return self.kept.get(digest)

    async def list(self) -> list[ApiKey]:
        return sorted(self.kept.values(), key=lambda key: key.created_at)

    async def remove(self, key_id: str) -> bool:
        require(str, key_id=key_id)
        gone = [digest for digest, key in self.kept.items() if key.key_id == key_id]
        for digest in gone:
            del self.kept[digest]
        return bool(gone)


class MemoryErasures:
    """Erasures of one process."""

    def __init__(self) -> None:
        self.erasures: dict[str, Erasure] = {}
        """Those under way, by the digest of the person."""
        self.receipts: dict[str, Erasure] = {}

    async def begin(self, erasure: Erasure) -> Erasure:
        return self.erasures.setdefault(erasure.key, erasure)

    async def add(self, erasure: Erasure, conversations: Sequence[ErasedConversation]) -> None:
        if known := self._own(erasure):
            self.erasures[erasure.key] = replace(known, conversations=(*known.conversations, *conversations))

    async def report(self, erasure: Erasure) -> None:
        if known := self._own(erasure):
            self.erasures[erasure.key] = replace(erasure, conversations=known.conversations)

    async def under_way(self) -> list[Erasure]:
        return list(self.erasures.values())

    async def find(self, erasure_id: str) -> Erasure | None:
        require(str, erasure_id=erasure_id)
        living = (one for one in self.erasures.values() if one.erasure_id == erasure_id)
        return self.receipts.get(erasure_id) or next(living, None)

    async def end(self, erasure: Erasure, receipt: str) -> None:
        done = Erasure(erasure.erasure_id, None, erasure.tenant_id, None, erasure.asked_at, receipt=receipt)
        self.receipts.setdefault(erasure.erasure_id, done)
        if self._own(erasure):
            del self.erasures[erasure.key]

    def _own(self, erasure: Erasure) -> Erasure | None:
        known = self.erasures.get(erasure.key)
        return known if known and known.erasure_id == erasure.erasure_id else None


class MemoryBudgets:
    """Budgets of one process; its counters never expire."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}

    async def take(self, key: str, amount: int, limit: int, expires_at: datetime) -> bool:
        require(str, key=key)
        require(int, amount=amount, limit=limit)
        if self.counters.get(key, 0) >= limit:
            return False
        self.counters[key] = self.counters.get(key, 0) + amount
        return True

    async def correct(self, key: str, amount: int) -> int:
        require(str, key=key)
        require(int, amount=amount)
        if key not in self.counters:
            return 0
        self.counters[key] += amount
        return self.counters[key]
