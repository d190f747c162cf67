"""Reading the stores: episodes, messages, and which episodes are indexed."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from afterword.audit.snapshot import Archived, Position, Snapshot, Stored, digest, digest_of_message
from afterword.schemas.ids import earlier_message_key, tenant_message_key
from afterword.streams.errors import AfterwordError, StoreInUse
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import DeletedEpisode, EpisodeRef
from afterword.streams.stores.messages import MessageRef
from afterword.streams.stores.opening import Stores, open_stores

ReadIndex = Callable[[Settings, Sequence[str]], Awaitable[set[str]]]
"""Those of the episodes (ids) that are indexed. Raises: IndexNotChecked, StoreUnavailable."""

COUNTED_AT_A_TIME = 200

T = TypeVar("T")


class IndexNotChecked(AfterwordError):
    """index not checked: {reason}"""


async def read_stores(stores: Stores, snapshot: Snapshot, read: Callable[[int], None]) -> None:
    """Read episodes and messages into the snapshot; `read` is called with numbers of them. Raises: StoreUnavailable."""
    tenants: dict[str | None, str] = {}
    async for episode in stores.episodes.all_episodes():
        if isinstance(episode, DeletedEpisode):
            snapshot.gone[episode.deletion.episode_id] = episode.as_of
            if episode.deletion.reason == "expired":
                snapshot.expired.add(episode.deletion.episode_id)
            continue
        snapshot.stored[episode.episode_id] = stored(episode)
        if episode.tenant_id is not None:
            tenants[episode.episode_id] = episode.tenant_id
    async for message in _counted(stores.messages.all_messages(), read):
        if message.deleted:
            snapshot.messages[digest(message.key)] = Archived(None, False, deleted=True, changed=message.changed)
        elif message.archived:
            snapshot.messages[digest(message.key)] = archived(message)
        else:  # an older version's names no tenant; what is archived of the message knows better
            key = label_key(message, tenants.get(message.episode_id))
            snapshot.messages.setdefault(digest(key), Archived(message.episode_id, False))


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
    return Archived(message.episode_id, True, content, source, changed=message.changed)


def stored(episode: EpisodeRef) -> Stored:
    def name(message_id: str) -> bytes:
        return digest_of_message(episode.conversation_id, message_id, episode.tenant_id)

    changes = tuple((name(message_id), offset) for message_id, offset in episode.changes)
    messages = frozenset(map(name, episode.message_ids))
    return Stored(episode.made_from, episode.fingerprint, messages, changes, episode.as_of)


def label_key(message: MessageRef, tenant_id: str | None) -> str:
    """The key of a message of which only the summarizer's part is stored. `tenant_id`: of its episode."""
    named = tenant_id is None or earlier_message_key(message.key) is not None
    return message.key if named else tenant_message_key(message.key, tenant_id or "")


async def indexed_episodes(settings: Settings, episode_ids: Sequence[str]) -> set[str]:
    """Ask the index which of the episodes it has. Raises: IndexNotChecked, StoreUnavailable."""
    try:
        async with open_stores(settings) as stores:
            return set(await stores.index.revisions(episode_ids))
    except StoreInUse as error:
        raise IndexNotChecked(reason="a process of an earlier version has it open") from error
