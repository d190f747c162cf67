"""Opening the stores: the one place that says which backend holds what."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import cached_property, partial
from typing import Self

from afterword.streams.settings import Settings
from afterword.streams.stores import mongo
from afterword.streams.stores.budgets import Budgets
from afterword.streams.stores.episodes import EpisodeQueries
from afterword.streams.stores.erasures import Erasures
from afterword.streams.stores.index import EpisodeIndex
from afterword.streams.stores.keys import ApiKeys
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.sqlite import SqliteFile
from afterword.streams.together import together

FILE_NAME = "afterword.sqlite"


class Stores:
    """The stores of one process, each opened when it is first asked for. Getting one raises ConfigurationError.

    Opening connects to nothing: that is for the first call. The index's client is imported with the index, for it
    takes a second.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._closing = AsyncExitStack()

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
        """The search index: on a server, or in a directory, which several processes may have open."""
        index = self._open_index()
        self._closing.push_async_callback(index.close)
        return index

    async def prepare_database(self) -> None:
        """Create the indexes that the database lacks; may be repeated. Raises: StoreUnavailable."""
        await mongo.ensure_indexes(self._database, self._settings.retention.expires)

    @property
    def checks(self) -> dict[str, Callable[[], Awaitable[str]]]:
        """Checks of the backends by name; each returns what it found. Raise: ConfigurationError, StoreUnavailable."""
        return {mongo.STORE: self._check_database, "qdrant": self._check_index}

    async def ping_database(self) -> None:
        """Raises: StoreUnavailable."""
        await mongo.ping(self._database)

    async def reach(self) -> None:
        """Wait until every server answers, for all at the same time. Raises: ConfigurationError, StoreUnavailable.

        The index's client is not imported: a server that is away is known before.
        """
        await together(self.ping_database(), self._ping_index())

    async def close(self) -> None:
        """Close what was opened, the last first."""
        await self._closing.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @cached_property
    def _database(self) -> mongo.MongoDatabase:
        database = mongo.connect(self._settings.mongo)
        self._closing.push_async_callback(mongo.close, database)
        return database

    async def _check_database(self) -> str:
        return await mongo.check(self._database)

    async def _ping_index(self) -> None:
        if self._settings.qdrant.path:
            return
        from afterword.streams.stores import qdrant_server

        await qdrant_server.ping_server(self._settings.qdrant)

    async def _check_index(self) -> str:
        await self._ping_index()
        check = await asyncio.to_thread(
            self._index_check
        )  # its client takes a second to import: meanwhile others answer
        return await check()

    @cached_property
    def _file(self) -> SqliteFile:
        if self._settings.qdrant.path is None:
            raise ValueError("no path is configured")
        file = SqliteFile(self._settings.qdrant.path / FILE_NAME)
        self._closing.push_async_callback(file.close)
        return file

    async def _check_file(self) -> str:
        await self._file.ping()
        return str(self._file.path)

    def _index_check(self) -> Callable[[], Awaitable[str]]:
        if self._settings.qdrant.path:
            return self._check_file
        from afterword.streams.stores import qdrant

        return partial(qdrant.check, self._settings.qdrant)

    def _open_index(self) -> EpisodeIndex:
        if self._settings.qdrant.path:
            from afterword.streams.stores.sqlite_index import SqliteIndex

            return SqliteIndex(self._file, self._settings.embedder.vectors_model)
        from afterword.streams.stores.qdrant import open_index

        return open_index(self._settings.qdrant, self._settings.embedder)


def open_stores(settings: Settings) -> Stores:
    """The configured stores, to be used with `async with`."""
    return Stores(settings)
