"""Reading the stores: episodes, messages, and which episodes are indexed."""

from collections.abc import Awaitable, Callable, Sequence

from afterword.audit.snapshot import Archived, Snapshot, Stored, digest
from afterword.streams.errors import AfterwordError, StoreInUse
from afterword.streams.settings import Settings
from afterword.streams.stores.opening import open_stores

ReadIndex = Callable[[Settings, Sequence[str]], Awaitable[set[str]]]
"""Those of the episodes (ids) that are indexed. Raises: IndexNotChecked, StoreUnavailable."""


class IndexNotChecked(AfterwordError):
    """index not checked: {reason}"""


async def read_stores(settings: Settings, snapshot: Snapshot) -> None:
    """Read episodes and messages into the snapshot. Raises: StoreUnavailable."""
    async with open_stores(settings) as stores:
        async for episode in stores.episodes.all_episodes():
            snapshot.stored[episode.episode_id] = Stored(episode.made_from, episode.fingerprint)
        async for message in stores.messages.all_messages():
            snapshot.messages[digest(message.key)] = Archived(message.episode_id, message.archived)


async def indexed_episodes(settings: Settings, episode_ids: Sequence[str]) -> set[str]:
    """Ask the index which of the episodes it has. Raises: IndexNotChecked, StoreUnavailable."""
    try:
        async with open_stores(settings) as stores:
            return await stores.index_reader.has(episode_ids)
    except StoreInUse as error:
        raise IndexNotChecked(reason="in use by another process, which does not answer") from error
