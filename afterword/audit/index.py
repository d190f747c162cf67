"""Which episodes have a point in Qdrant."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from afterword.streams.errors import AfterwordError, StoreInUse, StoreUnavailable
from afterword.streams.settings import Settings
from afterword.streams.stores.local_index import ids_of_owner
from afterword.streams.stores.mongo import batches
from afterword.streams.stores.qdrant import open_index

IndexReader = Callable[[Settings, Sequence[str]], Awaitable[set[str]]]
"""Which of these episodes (ids) have a point. Raises: IndexNotChecked, StoreUnavailable."""


class IndexNotChecked(AfterwordError):
    """index not checked: {reason}"""


async def indexed_episodes(settings: Settings, episode_ids: Sequence[str]) -> set[str]:
    """Asks the server, opens the directory if no other process has it, or asks the process that has.

    Raises: IndexNotChecked, StoreUnavailable.
    """
    path = settings.qdrant.path
    if path is not None and not path.is_dir():
        return set()  # opening it would make it
    index = open_index(settings.qdrant, settings.embedder)
    try:
        found = [await index.has(batch) for batch in batches(episode_ids)]
    except StoreInUse:
        if path is None:
            raise
        return await _ask_owner(path, episode_ids)
    finally:
        await index.close()
    return set().union(*found)


async def _ask_owner(path: Path, episode_ids: Sequence[str]) -> set[str]:
    try:
        return await ids_of_owner(path) & set(episode_ids)
    except StoreUnavailable as error:
        raise IndexNotChecked(reason=f"in use by another process; {error}") from None
