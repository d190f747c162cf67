"""Reading the stores: episodes, messages, and which episodes are indexed."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from afterword.audit.snapshot import (
    Archived,
    AuditedEpisode,
    DeletedDocument,
    MessageDocument,
    Snapshot,
    Stored,
    digest,
    digest_of_message,
)
from afterword.streams.log_reader import Position
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import DeletedEpisode, EpisodeRef
from afterword.streams.stores.messages import MessageRef
from afterword.streams.stores.opening import Stores, open_stores

ReadIndex = Callable[[Settings, Sequence[str]], Awaitable[set[str]]]
"""Those of the episodes (ids) that are indexed. Raises: StoreUnavailable."""

COUNTED_AT_A_TIME = 200

T = TypeVar("T")


async def read_stores(stores: Stores, snapshot: Snapshot, read: Callable[[int], None]) -> None:
    """Read episodes and messages into the snapshot; `read` is called with numbers of them.

    Raises: StoreUnavailable, NoRoom.
    """
    async for episode in stores.episodes.all_episodes():
        snapshot.add(_deleted(episode) if isinstance(episode, DeletedEpisode) else _kept(episode))
    async for message in _counted(stores.messages.all_messages(), read):
        snapshot.add(_document(message))


def _deleted(episode: DeletedEpisode) -> DeletedDocument:
    return DeletedDocument(episode.deletion.episode_id, episode.as_of, episode.deletion.reason == "expired")


def _kept(episode: EpisodeRef) -> AuditedEpisode:
    return AuditedEpisode(episode.episode_id, episode.conversation_id, stored(episode))


def _document(message: MessageRef) -> MessageDocument:
    if message.deleted:
        return MessageDocument(message.key, Archived(None, False, deleted=True, changed=message.changed))
    return MessageDocument(message.key, archived(message))


async def _counted(items: AsyncIterator[T], read: Callable[[int], None]) -> AsyncIterator[T]:
    done = 0
    async for item in items:
        yield item
        done += 1
        if done == COUNTED_AT_A_TIME:
            read(done)
            done = 0
    read(done)


def archived(message: MessageRef) -> Archived:
    content = None if message.content is None else digest(message.content)
    source = Position(*message.source) if message.source else None
    return Archived(message.episode_id, message.archived, content, source, changed=message.changed)


def stored(episode: EpisodeRef) -> Stored:
    def name(message_id: str) -> bytes:
        return digest_of_message(episode.conversation_id, message_id, episode.tenant_id)

    changes = tuple((name(message_id), offset) for message_id, offset in episode.changes)
    messages = frozenset(map(name, episode.message_ids))
    return Stored(episode.made_from, episode.fingerprint, messages, changes, episode.as_of)


async def indexed_episodes(settings: Settings, episode_ids: Sequence[str]) -> set[str]:
    """Ask the index which of the episodes it has. Raises: StoreUnavailable."""
    async with open_stores(settings) as stores:
        return set(await stores.index.revisions(episode_ids))
