"""The stores of one process, opened together and closed in order: the summarizer's, and those of an index made anew."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from afterword.streams.settings import Settings
from afterword.streams.stores import mongo
from afterword.streams.stores.mongo import Database
from afterword.streams.stores.qdrant import QdrantIndex, open_index
from afterword.streams.summarizer.embedders import Embedder, make_embedder


@dataclass(frozen=True)
class Stores:
    database: Database
    index: QdrantIndex
    embedder: Embedder | None


@asynccontextmanager
async def connected_stores(settings: Settings) -> AsyncIterator[Stores]:
    """Nothing is reached before its first use. Raises: ConfigurationError."""
    async with AsyncExitStack() as closing:
        database = mongo.connect(settings.mongo)
        closing.push_async_callback(mongo.close, database)
        index = open_index(settings.qdrant, settings.embedder)
        closing.push_async_callback(index.close)
        embedder = make_embedder(settings.embedder)
        if embedder:
            closing.push_async_callback(embedder.close)
        yield Stores(database, index, embedder)
