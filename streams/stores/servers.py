"""The stores on servers: MongoDB for documents, and Qdrant for the search index."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cached_property, partial

from afterword.streams.settings import Settings
from afterword.streams.stores import mongo
from afterword.streams.stores.bookkeeping import ApiKeys, Budgets, Erasures
from afterword.streams.stores.episodes import EpisodeQueries
from afterword.streams.stores.index import EpisodeIndex
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.opening import Stores
from afterword.streams.tasks import gather_or_cancel


class ServerStores(Stores):
    """Stores on servers. Qdrant's client is imported with the index, because that takes a second."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    @cached_property
    def episodes(self) -> EpisodeQueries:
        return mongo.MongoEpisodes(self._database)

    @cached_property
    def messages(self) -> MessageArchive:
        return mongo.MongoMessages(self._database)

    @cached_property
    def budgets(self) -> Budgets:
        return mongo.MongoBudgets(self._database)

    @cached_property
    def erasures(self) -> Erasures:
        return mongo.MongoErasures(self._database)

    @cached_property
    def keys(self) -> ApiKeys:
        return mongo.MongoKeys(self._database)

    @cached_property
    def index(self) -> EpisodeIndex:
        from afterword.streams.stores.qdrant import open_index

        index = open_index(self._settings.qdrant, self._settings.embedder)
        self._closing.push_async_callback(index.close)
        return index

    @property
    def checks(self) -> dict[str, Callable[[], Awaitable[str]]]:
        return {mongo.STORE: self._check_database, "qdrant": self._check_index}

    async def prepare_database(self) -> None:
        await mongo.ensure_indexes(self._database, self._settings.retention.expires)

    async def ping_database(self) -> None:
        await mongo.ping(self._database)

    async def reach(self) -> None:
        """Wait for both servers at the same time, before importing the index's client."""
        await gather_or_cancel(self.ping_database(), self._ping_index())

    @cached_property
    def _database(self) -> mongo.MongoDatabase:
        database = mongo.connect(self._settings.mongo)
        self._closing.push_async_callback(mongo.close, database)
        return database

    async def _check_database(self) -> str:
        return await mongo.check(self._database)

    async def _ping_index(self) -> None:
        from afterword.streams.stores import qdrant_server

        await qdrant_server.ping_server(self._settings.qdrant)

    async def _check_index(self) -> str:
        await self._ping_index()
        # in a thread, because its client takes a while to import
        check = await asyncio.to_thread(self._index_check)
        return await check()

    def _index_check(self) -> Callable[[], Awaitable[str]]:
        from afterword.streams.stores import qdrant

        return partial(qdrant.check, self._settings.qdrant)
