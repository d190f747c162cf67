"""Episodes in Qdrant: a sparse vector of the summary, one of the raw text, and a dense one if there is an embedder."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from operator import methodcaller
from typing import Any

from qdrant_client import models

from afterword.schemas import SummaryCreated
from afterword.schemas.ids import point_id
from afterword.streams.errors import ConfigurationError, StoreUnavailable
from afterword.streams.settings import Embedder, Qdrant
from afterword.streams.stores import qdrant_search
from afterword.streams.stores.fusion import DENSE, SUMMARY, TEXT
from afterword.streams.stores.index import Dense, Query, Recalled, summary_text
from afterword.streams.stores.qdrant_connection import Connection, connect
from afterword.streams.stores.sparse import document_vector

PAGE_SIZE = 1000
PAYLOAD_FIELDS = {
    *("event_id", "episode_id", "conversation_id", "user_id", "agent_id", "tenant_id", "message_ids"),
    *("revision", "ordinal", "short_summary", "started_at", "ended_at", "closed_at", "created_at"),
}
FILTERED_FIELDS = ("tenant_id", "user_id", "agent_id", "conversation_id")
"""Indexed on a server; the local mode has no payload indexes."""


class QdrantIndex:
    """An EpisodeIndex; its collection is made when the first episode comes.

    The collection's name carries the embedder's model: vectors of two models cannot be compared, so another model
    means another collection, to be rebuilt from MongoDB.
    """

    def __init__(self, connection: Connection, collection: str, embedder_model: str | None = None) -> None:
        self.collection = collection_name(collection, embedder_model)
        self._model = embedder_model
        self._connection = connection
        self._ready = False
        self._creating = asyncio.Lock()

    async def put(self, summary: SummaryCreated, raw_text: str, dense: Dense | None = None) -> None:
        point = await asyncio.to_thread(_point, summary, raw_text, dense)  # stemming a long episode takes a while
        try:
            await self._ensure_collection(len(dense) if dense else None)
            await self._connection.run(
                lambda client: client.upsert(
                    self.collection, points=[point], wait=True, update_filter=_up_to(summary.revision)
                )
            )
        except StoreUnavailable:
            self._ready = False  # perhaps the collection is gone
            raise

    async def search(self, query: Query, dense: Dense | None = None) -> list[Recalled]:
        request = await asyncio.to_thread(qdrant_search.request, query, dense)
        if request is None or not await self._exists():
            return []
        found = await self._connection.run(lambda client: client.query_points(self.collection, **request))
        return [qdrant_search.recalled(point) for point in found.points]

    async def revisions(self, episode_ids: Sequence[str]) -> dict[str, int]:
        ids = {point_id(episode): episode for episode in episode_ids}
        if not ids or not await self._exists():
            return {}
        found = await self._connection.run(
            lambda client: client.retrieve(self.collection, ids=list(ids), with_payload=["revision"])
        )
        return {ids[record.id]: record.payload["revision"] for record in found}

    async def has(self, episode_ids: Sequence[str]) -> set[str]:
        return set(await self.revisions(episode_ids))

    async def all_ids(self) -> AsyncIterator[str]:
        offset: Any = None
        more = await self._exists()
        while more:
            records, offset = await self._page(offset)
            more = offset is not None
            for record in records:
                yield record.payload["episode_id"]

    async def ping(self) -> None:
        await self._connection.run(lambda client: client.get_collections())

    async def close(self) -> None:
        await self._connection.close()

    async def _page(self, offset: Any) -> Any:
        return await self._connection.run(
            lambda client: client.scroll(self.collection, limit=PAGE_SIZE, offset=offset, with_payload=["episode_id"])
        )

    async def _exists(self) -> bool:
        return bool(await self._connection.run(lambda client: client.collection_exists(self.collection)))

    async def _ensure_collection(self, dimension: int | None) -> None:
        async with self._creating:
            if self._ready:
                return
            if await self._exists():
                await self._check_dimension(dimension)
            else:
                await self._create(dimension)
            if self._connection.is_server:
                await self._create_payload_indexes()
            self._ready = True

    async def _check_dimension(self, dimension: int | None) -> None:
        info = await self._connection.run(lambda client: client.get_collection(self.collection))
        dense = (info.config.params.vectors or {}).get(DENSE)
        found = dense.size if dense else None
        if found != dimension:
            problem = f"collection {self.collection} has vectors of dimension {found}, the embedder's have {dimension}"
            raise ConfigurationError(setting="AFTERWORD_EMBEDDER__MODEL", problem=problem)

    async def _create(self, dimension: int | None) -> None:
        """Two processes may meet here: the slower one gets an error, and finds the collection when it tries again."""
        dense = {DENSE: models.VectorParams(size=dimension, distance=models.Distance.COSINE)} if dimension else {}
        sparse = models.SparseVectorParams(modifier=models.Modifier.IDF)
        await self._connection.run(
            lambda client: client.create_collection(
                self.collection,
                vectors_config=dense,
                sparse_vectors_config={SUMMARY: sparse, TEXT: sparse},
                metadata={"embedder_model": self._model, "dimension": dimension},
            )
        )

    async def _create_payload_indexes(self) -> None:
        keyword = models.PayloadSchemaType.KEYWORD
        for field in FILTERED_FIELDS:
            create = methodcaller("create_payload_index", self.collection, field_name=field, field_schema=keyword)
            await self._connection.run(create)


def open_index(settings: Qdrant, embedder: Embedder) -> QdrantIndex:
    """The configured index, in the collection of the configured embedder; nothing is reached before its first use."""
    return QdrantIndex(connect(settings), settings.collection, embedder.vectors_model)


def collection_name(collection: str, embedder_model: str | None) -> str:
    """`episodes`, or `episodes-nomic-embed-text` with a dense vector of that model."""
    return f"{collection}-{re.sub(r'[^A-Za-z0-9_.]+', '-', embedder_model)}" if embedder_model else collection


def payload(summary: SummaryCreated) -> dict[str, Any]:
    """What is kept beside the vectors: all ids, times as RFC 3339, and what a search shows."""
    return {
        **summary.model_dump(mode="json", include=PAYLOAD_FIELDS),
        "quality": {"source": summary.quality.source},
    }


def _point(summary: SummaryCreated, raw_text: str, dense: Dense | None) -> models.PointStruct:
    sparse = {SUMMARY: document_vector(summary_text(summary)), TEXT: document_vector(raw_text)}
    vectors: dict[str, Any] = {
        name: models.SparseVector(indices=list(vector.indices), values=list(vector.values))
        for name, vector in sparse.items()
        if vector.indices
    }
    if dense:
        vectors[DENSE] = list(dense)
    return models.PointStruct(id=point_id(summary.episode_id), vector=vectors, payload=payload(summary))


def _up_to(revision: int) -> models.Filter:
    """Which stored points may be overwritten (conditional updates, Qdrant 1.16); a new one is always inserted."""
    return models.Filter(must=[models.FieldCondition(key="revision", range=models.Range(lte=revision))])
