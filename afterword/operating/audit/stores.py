"""Reduces the stores' documents to the rows that an audit keeps, and finds out which episodes are indexed."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from afterword.operating.audit import evidence as rows
from afterword.operating.audit.evidence import (
    Document,
    Evidence,
    StoredChange,
    StoredFact,
    StoredMessage,
    digest,
    digest_of_message,
)
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import DeletedEpisode, EpisodeRef
from afterword.streams.stores.messages import MessageRef
from afterword.streams.stores.opening import Stores, open_stores

ReadIndex = Callable[[Settings, Sequence[str]], Awaitable[set[str]]]
"""Returns which of these episode ids are indexed. Raises: StoreUnavailable."""

COUNTED_AT_A_TIME = 200

T = TypeVar("T")


async def read_stores(stores: Stores, evidence: Evidence, read: Callable[[int], None]) -> None:
    """Add every episode and message. `read` is called with numbers of messages. Raises: StoreUnavailable, NoRoom."""
    async for episode in stores.episodes.all_episodes():
        take_stored(evidence, episode)
    async for message in _counted(stores.messages.all_messages(), read):
        evidence.add(document_of(message))


def take_stored(evidence: Evidence, episode: EpisodeRef | DeletedEpisode) -> None:
    if isinstance(episode, DeletedEpisode):
        deletion = episode.deletion
        evidence.add(rows.DeletedEpisode(deletion.episode_id, deletion.reason == "expired"))
        return
    name, whose = episode.episode_id, (episode.conversation_id, episode.tenant_id)
    evidence.add(rows.StoredEpisode(name, episode.fingerprint))
    for message_id in episode.message_ids:
        evidence.add(StoredMessage(name, digest_of_message(whose[0], message_id, whose[1])))
    for message_id in episode.fact_message_ids:
        evidence.add(StoredFact(name, digest_of_message(whose[0], message_id, whose[1])))
    for message_id, offset in episode.inputs:
        evidence.add(StoredChange(name, digest_of_message(whose[0], message_id, whose[1]), offset))


def document_of(message: MessageRef) -> Document:
    key = digest(message.key)
    if message.deleted:
        return Document(key, None, False, deleted=True, changed=message.changed)
    content = None if message.content is None else digest(message.content)
    partition, offset = message.source or (None, None)
    return Document(key, message.episode_id, message.archived, content, partition, offset, changed=message.changed)


async def _counted(items: AsyncIterator[T], read: Callable[[int], None]) -> AsyncIterator[T]:
    done = 0
    async for item in items:
        yield item
        done += 1
        if done == COUNTED_AT_A_TIME:
            read(done)
            done = 0
    read(done)


async def indexed_episodes(settings: Settings, episode_ids: Sequence[str]) -> set[str]:
    """Return which of the episodes are in the index. Raises: StoreUnavailable."""
    async with open_stores(settings) as stores:
        return set(await stores.index.revisions(episode_ids))
