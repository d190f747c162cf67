"""Which episodes have a point in Qdrant."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing

from qdrant_client import QdrantClient
from qdrant_client.http.exceptions import ApiException

from schemas.ids import point_id
from streams.errors import AfterwordError, StoreUnavailable
from streams.settings import Qdrant, Settings

IndexReader = Callable[[Settings, Sequence[str]], Awaitable[set[str]]]
"""Which of these episodes (ids) have a point. Raises: IndexNotChecked, StoreUnavailable."""

BATCH_SIZE = 1000


class IndexNotChecked(AfterwordError):
    """index not checked: {reason}"""


async def indexed_episodes(settings: Settings, episode_ids: Sequence[str]) -> set[str]:
    """Asks the server, or opens the directory if no other process has it.

    Raises: IndexNotChecked, StoreUnavailable.
    """
    return await asyncio.to_thread(_indexed, settings.qdrant, episode_ids)  # local mode blocks


def _indexed(settings: Qdrant, episode_ids: Sequence[str]) -> set[str]:
    if settings.url is None and (settings.path is None or not settings.path.is_dir()):
        raise IndexNotChecked(reason="there is none")
    with closing(_client(settings)) as client:
        try:
            return _existing(client, settings.collection, episode_ids)
        except ApiException as error:
            raise StoreUnavailable(store="qdrant", problem=type(error).__name__) from error


def _client(settings: Qdrant) -> QdrantClient:
    if settings.path is None:
        key = settings.api_key.get_secret_value() if settings.api_key else None
        return QdrantClient(url=settings.url, api_key=key, timeout=int(settings.timeout_seconds))
    try:
        return QdrantClient(path=str(settings.path))
    except RuntimeError as error:
        if "already accessed" not in str(error):
            raise
        raise IndexNotChecked(reason="in use by a running worker") from None


def _existing(client: QdrantClient, collection: str, episode_ids: Sequence[str]) -> set[str]:
    if not client.collection_exists(collection):
        return set()
    found: set[str] = set()
    for start in range(0, len(episode_ids), BATCH_SIZE):
        points = {point_id(episode): episode for episode in episode_ids[start : start + BATCH_SIZE]}
        records = client.retrieve(collection, ids=list(points), with_payload=False, with_vectors=False)
        found |= {points[str(record.id)] for record in records}
    return found
