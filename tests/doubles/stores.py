"""Stores in memory, which pass the same contract tests as the real ones (tests/contract/stores)."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from afterword.schemas import ConversationDeleted, MessageDeleted, SummaryCreated, SummaryDeleted
from afterword.schemas.base import EPOCH
from afterword.schemas.ids import message_key
from afterword.streams.stores.arguments import require, require_texts, require_within
from afterword.streams.stores.documents import archived_key, deletion_key
from afterword.streams.stores.episodes import (
    Conversation,
    DeletedEpisode,
    EpisodeRef,
    EpisodeVersion,
    RollingRow,
    StoredEpisode,
    agent_of_scope,
    first_advance,
    id_prefix,
    scope_of,
)
from afterword.streams.stores.erasures import ErasedConversation, Erasure
from afterword.streams.stores.keys import ApiKey
from afterword.streams.stores.messages import (
    ArchiveChange,
    ArchivedMessage,
    Authors,
    Counted,
    DeletedMessage,
    MessageRef,
    MessageText,
    PendingDeletion,
    Selection,
    agent_scope,
    sort_key,
)
from afterword.streams.stores.replies import KeptReply
from afterword.streams.tokens import count_tokens


class MemoryEpisodes:
    """An EpisodeStore."""

    def __init__(self) -> None:
        self.episodes: dict[str, StoredEpisode] = {}
        self.deleted: dict[str, DeletedEpisode] = {}
        self.rows: dict[str, list[RollingRow]] = {}
        self.known: dict[str, Conversation] = {}
        self.refused: set[tuple[str, int, str | None]] = set()
        """Episode, the revision that refuses, position."""

    async def find(self, episode_id: str) -> StoredEpisode | None:
        require(str, id=episode_id)
        return self.episodes.get(episode_id)

    async def lookup(self, episode_id: str) -> StoredEpisode | DeletedEpisode | None:
        require(str, id=episode_id)
        return self.deleted.get(episode_id) or self.episodes.get(episode_id)

    async def find_many(self, episode_ids: Sequence[str]) -> dict[str, StoredEpisode]:
        require_texts(episode_ids=episode_ids)
        return {name: self.episodes[name] for name in episode_ids if name in self.episodes}

    async def versions(self, episode_ids: Sequence[str]) -> dict[str, EpisodeVersion]:
        require_texts(episode_ids=episode_ids)
        living = {one: found for one in episode_ids if (found := self.episodes.get(one))}
        gone = {one: found for one in episode_ids if (found := self.deleted.get(one))}
        return {one: EpisodeVersion(e.summary.revision, e.as_of, e.made_by) for one, e in living.items()} | {
            one: EpisodeVersion(e.deletion.revision, e.as_of, e.made_by, e.deletion.reason) for one, e in gone.items()
        }

    async def has_any(self, conversation_id: str, agent_id: str | None, message_ids: Sequence[str]) -> bool:
        require_texts(message_ids=message_ids)
        found = self._of_scope_with_deleted(conversation_id, agent_id)
        return any(not _ids_in(episode).isdisjoint(message_ids) for episode in found)

    async def has_before(self, conversation_id: str, agent_id: str | None, offset: int, ordinal: int) -> bool:
        require(int, offset=offset, ordinal=ordinal)
        return any(
            episode.last_offset <= offset
            if isinstance(episode, StoredEpisode)
            else (episode.as_of == offset and episode.ordinal >= ordinal)
            for episode in self._of_scope_with_deleted(conversation_id, agent_id)
        )

    def _of_scope_with_deleted(
        self, conversation_id: str, agent_id: str | None
    ) -> list[StoredEpisode | DeletedEpisode]:
        gone = [e for i, e in self.deleted.items() if i.startswith(id_prefix(conversation_id, agent_id))]
        return [*self._of_scope(conversation_id, agent_id), *gone]

    async def remove(self, deleted: DeletedEpisode) -> StoredEpisode | DeletedEpisode:
        name = deleted.deletion.episode_id
        known = await self.lookup(name)
        if isinstance(known, DeletedEpisode) or (known and known.summary.revision >= deleted.deletion.revision):
            return known
        if known and (name, known.summary.revision, deleted.announced_by) in self.refused:
            return known
        self.episodes.pop(name, None)
        self.deleted[name] = deleted
        return deleted

    async def mark(self, episode: StoredEpisode, as_of: int) -> None:
        known = self.episodes.get(episode.summary.episode_id)
        if known is not None and known.summary.revision == episode.summary.revision:
            self.episodes[episode.summary.episode_id] = replace(known, as_of=max(as_of, known.as_of))

    async def holding(self, conversation_id: str, message_id: str) -> list[StoredEpisode | DeletedEpisode]:
        require(str, conversation_id=conversation_id, message_id=message_id)
        found = [e for e in self._everything(conversation_id) if message_id in _ids_in(e)]
        return sorted(found, key=lambda e: e.ordinal)

    async def of_conversation(
        self, conversation_id: str, after: str | None, limit: int
    ) -> list[StoredEpisode | DeletedEpisode]:
        require(str, conversation_id=conversation_id)
        found = [e for e in self._everything(conversation_id) if after is None or e.event.episode_id > after]
        return sorted(found, key=lambda e: e.event.episode_id.encode())[:limit]

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

    async def later(self, episode: SummaryCreated | SummaryDeleted, limit: int, after: int) -> list[StoredEpisode]:
        require(int, limit=limit, after=after)
        found = self._of_scope(episode.conversation_id, agent_of_scope(episode))
        return sorted((e for e in found if e.ordinal > after), key=lambda e: e.ordinal)[:limit]

    async def rows_from(self, conversation_id: str, ordinal: int) -> list[RollingRow]:
        require(str, conversation_id=conversation_id)
        return [row for row in self.rows.get(conversation_id, ()) if row.last_ordinal >= ordinal]

    async def recount(self, event: SummaryCreated | SummaryDeleted) -> None:
        key = scope_of(event)
        known = self.known.get(key)
        living = self._of_scope(event.conversation_id, agent_of_scope(event))
        if known is None:
            return
        counted = [e.summary for e in living if e.ordinal <= known.last_ordinal]
        if not counted:
            counts = {"episode_count": 0, "message_count": 0, "token_count": 0}
            self.known[key] = replace(known, title="", user_id="", **counts)
            return
        last = max(counted, key=lambda summary: summary.ordinal)
        self.known[key] = replace(
            known,
            title=last.title,
            user_id=min(counted, key=lambda summary: summary.ordinal).user_id,
            episode_count=len(counted),
            message_count=sum(summary.message_count for summary in counted),
            token_count=sum(summary.compression.tokens_before for summary in counted),
            updated_at=last.created_at,
            last_revision=last.revision if last.ordinal == known.last_ordinal else known.last_revision,
        )

    async def expired(self, before: datetime, limit: int) -> list[StoredEpisode]:
        require(datetime, before=before)
        require(int, limit=limit)
        require_within(1, limit=limit)
        older = [e for e in self.episodes.values() if e.summary.ended_at < before]
        return sorted(older, key=lambda e: e.summary.ended_at)[:limit]

    async def end_conversation(self, last: StoredEpisode) -> bool:
        scope = scope_of(last.summary)
        living = self._of_scope(last.summary.conversation_id, agent_of_scope(last.summary))
        if any(episode.ordinal != last.ordinal for episode in living):
            return False
        self.rows[scope] = [row for row in self.rows.get(scope, ()) if row.last_ordinal > last.ordinal]
        known = self.known.get(scope)
        if known and known.last_ordinal <= last.ordinal:
            del self.known[scope]
        return True

    def _everything(self, conversation_id: str) -> list[StoredEpisode | DeletedEpisode]:
        every = [*self.episodes.values(), *self.deleted.values()]
        return [e for e in every if e.event.conversation_id == conversation_id]

    async def add(self, episode: StoredEpisode) -> StoredEpisode | DeletedEpisode:
        if gone := self.deleted.get(episode.summary.episode_id):
            return gone
        name = episode.summary.episode_id
        known = self.episodes.get(name)
        refused = known and (name, known.summary.revision, episode.announced_by) in self.refused
        if known is None or (known.summary.revision < episode.summary.revision and not refused):
            self.episodes[name] = episode
        return self.episodes[name]

    async def refuse(self, episode_id: str, position: str) -> StoredEpisode | DeletedEpisode | None:
        require(str, episode_id=episode_id, position=position)
        if known := self.episodes.get(episode_id):
            self.refused.add((episode_id, known.summary.revision, position))
        return await self.lookup(episode_id)

    async def latest_row(self, conversation_id: str) -> RollingRow | None:
        require(str, conversation_id=conversation_id)
        rows = self.rows.get(conversation_id)
        return rows[-1] if rows else None

    async def put_row(self, row: RollingRow, after: RollingRow | None) -> bool:
        rows = self.rows.setdefault(row.conversation_id, [])
        if after is not None and after.row == row.row:  # any row may be replaced
            if after not in rows:
                return False
            rows[rows.index(after)] = row
            return True
        if any(known.row == row.row for known in rows):
            return False
        rows.append(row)
        return True

    async def advance(self, summary: SummaryCreated) -> None:
        first = first_advance(summary)
        known = self.known.setdefault(scope_of(summary), first)
        if not known.episode_count:
            if known.last_ordinal < summary.ordinal:
                self.known[scope_of(summary)] = first
        elif (known.last_ordinal, known.last_revision) < (summary.ordinal, summary.revision):
            new = known.last_ordinal < summary.ordinal
            self.known[scope_of(summary)] = replace(
                known,
                title=first.title,
                episode_count=known.episode_count + new,
                last_ordinal=first.last_ordinal,
                message_count=known.message_count + new * first.message_count,
                updated_at=first.updated_at,
                token_count=known.token_count + new * first.token_count,
                last_revision=first.last_revision,
            )

    async def conversation(self, conversation_id: str) -> Conversation | None:
        require(str, id=conversation_id)
        known = self.known.get(conversation_id)
        return known if known and known.episode_count else None

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

    async def latest(
        self, conversation_id: str, limit: int, *, before: int | None = None, agent_id: str | None = None
    ) -> list[StoredEpisode]:
        require(int, limit=limit)
        require_within(1, limit=limit)
        require(int | None, before=before)
        found = [e for e in self._of_scope(conversation_id, agent_id) if before is None or e.summary.ordinal < before]
        return sorted(found, key=lambda e: -e.summary.ordinal)[:limit]

    async def following(self, episode_id: str | None, limit: int) -> list[StoredEpisode]:
        require(str | None, episode_id=episode_id)
        require(int, limit=limit)
        require_within(1, limit=limit)
        ids = sorted((i for i in self.episodes if episode_id is None or i > episode_id), key=str.encode)
        return [self.episodes[i] for i in ids[:limit]]

    async def count_following(self, episode_id: str | None) -> int:
        require(str | None, episode_id=episode_id)
        return sum(episode_id is None or i > episode_id for i in self.episodes)

    async def count_all(self) -> int:
        return len(self.episodes.keys() | self.deleted.keys())

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
                made_from=summary.made_from,
                tenant_id=summary.tenant_id,
                agent_id=summary.agent_id,
                changes=stored.changes,
                as_of=stored.as_of,
            )


def _place(known: Conversation) -> tuple[datetime, bytes]:
    return known.updated_at, known.conversation_id.encode()


def _ids_in(episode: StoredEpisode | DeletedEpisode) -> set[str]:
    changed = {message_id for message_id, _ in episode.changes}
    return changed | (
        {*episode.summary.message_ids, *episode.overlap_ids} if isinstance(episode, StoredEpisode) else set()
    )


class MemoryMessages:
    """A MessageArchive."""

    def __init__(self) -> None:
        self.messages: dict[str, ArchivedMessage] = {}
        self.episode_ids: dict[str, str] = {}
        self.agent_scopes: dict[str, set[str]] = {}
        self.deleted: dict[str, DeletedMessage] = {}
        self.pending: dict[str, PendingDeletion] = {}

    async def put_many(self, messages: Sequence[ArchivedMessage]) -> None:
        for archived in messages:
            if archived_key(archived) not in self.deleted:
                self.messages.setdefault(archived_key(archived), archived)

    async def change(self, change: ArchiveChange) -> None:
        event = change.event
        if isinstance(event, ConversationDeleted):
            for key, archived in list(self.messages.items()):
                message = archived.message
                same = (message.conversation_id, message.tenant_id) == (event.conversation_id, event.tenant_id)
                if same and archived.offset < change.offset:
                    self._note(PendingDeletion(event.conversation_id, event.tenant_id, None, change.offset))
                    self._delete(key, change.offset)
            return
        key = message_key(event.conversation_id, event.id, event.tenant_id)
        known = self.messages.get(key)
        if known is None:
            if isinstance(event, MessageDeleted) and key in self.episode_ids and key not in self.deleted:
                self._delete_one(event, key, change.offset)
        elif max(known.offset, known.changed) < change.offset:
            if isinstance(event, MessageDeleted):
                self._delete_one(event, key, change.offset)
            else:
                self.messages[key] = replace(known, message=known.message.edited(event), changed=change.offset)

    def _delete_one(self, event: MessageDeleted, key: str, offset: int) -> None:
        known = self.messages.get(key)
        if key in self.episode_ids or not (known and known.message.skip_summarization):
            self._note(PendingDeletion(event.conversation_id, event.tenant_id, event.id, offset))
        self._delete(key, offset)

    def _note(self, deletion: PendingDeletion) -> None:
        self.pending[deletion_key(deletion)] = deletion

    async def pending_deletions(self, conversation_ids: Sequence[str], limit: int) -> list[PendingDeletion]:
        require_texts(conversation_ids=conversation_ids)
        require(int, limit=limit)
        require_within(1, limit=limit)
        return [one for one in self.pending.values() if one.conversation_id in conversation_ids][:limit]

    async def settle(self, deletion: PendingDeletion) -> None:
        if self.pending.get(deletion_key(deletion)) == deletion:
            del self.pending[deletion_key(deletion)]

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

    async def assign(self, episode_id: str, keys: Sequence[str]) -> None:
        require(str, episode_id=episode_id)
        require_texts(keys=keys)
        self.episode_ids.update(dict.fromkeys(keys, episode_id))
        if scope := agent_scope(episode_id):
            for key in keys:
                self.agent_scopes.setdefault(key, set()).add(scope)

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

    async def missing(self, keys: Sequence[str]) -> set[str]:
        require_texts(keys=keys)
        return set(keys) - self.messages.keys() - self.deleted.keys() - self.episode_ids.keys()

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


class MemoryReplies:
    """A ReplyCache."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[KeptReply, datetime]] = {}

    async def get(self, key: str) -> KeptReply | None:
        require(str, id=key)
        reply, expires_at = self.kept.get(key, (None, datetime.max.replace(tzinfo=UTC)))
        return reply if expires_at > datetime.now(UTC) else None

    async def put(self, key: str, reply: KeptReply, expires_at: datetime) -> None:
        require(str, key=key)
        self.kept[key] = reply, expires_at

    async def forget(self, scope: str, ordinal: int) -> None:
        require(str, scope=scope)
        self.kept = {
            key: (reply, expires_at)
            for key, (reply, expires_at) in self.kept.items()
            if reply.origin is None or reply.origin.scope != scope or reply.origin.ordinal < ordinal
        }


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
