"""Stores in memory, which pass the same contract tests as the real ones (tests/contract/stores)."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from afterword.schemas import SummaryCreated
from afterword.schemas.ids import message_key
from afterword.streams.stores.arguments import require, require_texts
from afterword.streams.stores.episodes import (
    Conversation,
    EpisodeRef,
    RollingRow,
    StoredEpisode,
    first_advance,
    id_prefix,
    scope_of,
)
from afterword.streams.stores.messages import (
    ArchivedMessage,
    Counted,
    MessageRef,
    Selection,
    agent_scope,
    position,
)
from afterword.streams.stores.replies import KeptReply
from afterword.streams.tokens import count_tokens


class MemoryEpisodes:
    """An EpisodeStore."""

    def __init__(self) -> None:
        self.episodes: dict[str, StoredEpisode] = {}
        self.rows: dict[str, list[RollingRow]] = {}
        self.conversations: dict[str, Conversation] = {}

    async def find(self, episode_id: str) -> StoredEpisode | None:
        require(str, id=episode_id)
        return self.episodes.get(episode_id)

    async def add(self, episode: StoredEpisode) -> StoredEpisode:
        known = self.episodes.get(episode.summary.episode_id)
        if known is None or known.summary.revision < episode.summary.revision:
            self.episodes[episode.summary.episode_id] = episode
        return self.episodes[episode.summary.episode_id]

    async def latest_row(self, conversation_id: str) -> RollingRow | None:
        require(str, conversation_id=conversation_id)
        rows = self.rows.get(conversation_id)
        return rows[-1] if rows else None

    async def put_row(self, row: RollingRow, after: RollingRow | None) -> bool:
        rows = self.rows.setdefault(row.conversation_id, [])
        if (rows[-1] if rows else None) != after:
            return False
        rows[row.row - 1 :] = [row]
        return True

    async def advance(self, summary: SummaryCreated) -> None:
        first = first_advance(summary)
        known = self.conversations.setdefault(scope_of(summary), first)
        if (known.last_ordinal, known.last_revision) < (summary.ordinal, summary.revision):
            new = known.last_ordinal < summary.ordinal
            self.conversations[scope_of(summary)] = replace(
                known,
                title=first.title,
                episode_count=known.episode_count + new,
                last_ordinal=first.last_ordinal,
                message_count=known.message_count + new * first.message_count,
                updated_at=first.updated_at,
                token_count=known.token_count + new * first.token_count,
                counted_episodes=known.counted_episodes + new,
                last_revision=first.last_revision,
            )

    async def conversation(self, conversation_id: str) -> Conversation | None:
        require(str, id=conversation_id)
        return self.conversations.get(conversation_id)

    async def latest(
        self, conversation_id: str, limit: int, *, before: int | None = None, agent_id: str | None = None
    ) -> list[StoredEpisode]:
        require(int, limit=limit)
        require(int | None, before=before)
        found = [e for e in self._of_scope(conversation_id, agent_id) if before is None or e.summary.ordinal < before]
        return sorted(found, key=lambda e: -e.summary.ordinal)[:limit]

    async def tokens_before(self, conversation_id: str, agent_id: str | None = None) -> int:
        return sum(e.summary.compression.tokens_before for e in self._of_scope(conversation_id, agent_id))

    async def following(self, episode_id: str | None, limit: int) -> list[StoredEpisode]:
        require(str | None, episode_id=episode_id)
        require(int, limit=limit)
        ids = sorted((i for i in self.episodes if episode_id is None or i > episode_id), key=str.encode)
        return [self.episodes[i] for i in ids[:limit]]

    def _of_scope(self, conversation_id: str, agent_id: str | None) -> list[StoredEpisode]:
        require(str, conversation_id=conversation_id)
        require(str | None, agent_id=agent_id)
        prefix = id_prefix(conversation_id, agent_id)
        return [episode for i, episode in self.episodes.items() if i.startswith(prefix)]

    async def all_episodes(self) -> AsyncIterator[EpisodeRef]:
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
            )


class MemoryMessages:
    """A MessageArchive."""

    def __init__(self) -> None:
        self.messages: dict[str, ArchivedMessage] = {}
        self.episode_ids: dict[str, str] = {}
        self.agent_scopes: dict[str, set[str]] = {}

    async def put_many(self, messages: Sequence[ArchivedMessage]) -> None:
        for archived in messages:
            self.messages.setdefault(message_key(archived.message.conversation_id, archived.message.id), archived)

    async def assign(self, episode_id: str, keys: Sequence[str]) -> None:
        require(str, episode_id=episode_id)
        require_texts(keys=keys)
        self.episode_ids.update(dict.fromkeys(keys, episode_id))
        if scope := agent_scope(episode_id):
            for key in keys:
                self.agent_scopes.setdefault(key, set()).add(scope)

    async def newest(self, selection: Selection) -> AsyncGenerator[ArchivedMessage, None]:
        for archived in sorted(self._selected(selection), key=position, reverse=True):
            yield archived

    async def count(self, selection: Selection) -> Counted:
        found = [archived.message for archived in self._selected(selection)]
        tokens = sum(count_tokens(message.content) for message in found)
        return Counted(len(found), tokens, sum(message.skip_summarization for message in found))

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

    async def all_messages(self) -> AsyncIterator[MessageRef]:
        for key in self.messages.keys() | self.episode_ids.keys():
            archived = self.messages.get(key)
            yield MessageRef(
                key=key,
                episode_id=self.episode_ids.get(key),
                archived=archived is not None,
                skipped=archived is not None and archived.message.skip_summarization,
            )


def _selects(selection: Selection, archived: ArchivedMessage) -> bool:
    """Whether the message matches the selection, `unsummarised` aside."""
    message = archived.message
    return (
        message.conversation_id == selection.conversation_id
        and message.tenant_id == selection.tenant_id
        and (selection.agent_id is None or message.agent_id in (None, selection.agent_id))
    )


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

    async def correct(self, key: str, amount: int) -> None:
        require(str, key=key)
        require(int, amount=amount)
        if key in self.counters:
            self.counters[key] += amount

    async def used(self, key: str) -> int:
        require(str, id=key)
        return self.counters.get(key, 0)
