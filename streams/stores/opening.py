"""Opens the stores: MongoDB for documents and Qdrant for the search index, or one SQLite file for both.

Clients of the other backend are not imported. The client of an index is imported with the index, because Qdrant's takes
a second.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path

from afterword.streams.settings import Settings
from afterword.streams.stores.bookkeeping import ApiKeys, Budgets, EndedSessions, Erasures, Records
from afterword.streams.stores.episodes import EpisodeQueries
from afterword.streams.stores.index import EpisodeIndex
from afterword.streams.stores.messages import MessageArchive


@dataclass(eq=False)
class Stores(AsyncExitStack):
    """The stores of one process, for use with `async with`. Opening does not connect; the first call does."""

    episodes: EpisodeQueries
    messages: MessageArchive
    records: Records
    open_index: Callable[[], EpisodeIndex]
    checks: Mapping[str, Callable[[], Awaitable[str]]]
    """Checks of the backends by name; each returns what it found. Raises: ConfigurationError, StoreUnavailable."""
    ping_database: Callable[[], Awaitable[None]]
    """Checks that the database answers. Raises: StoreUnavailable."""
    prepare_database: Callable[[], Awaitable[None]]
    """Creates the indexes that the database lacks; may be repeated. Raises: StoreUnavailable."""

    def __post_init__(self) -> None:
        super().__init__()
        self.budgets = Budgets(self.records)
        self.erasures = Erasures(self.records)
        self.keys = ApiKeys(self.records)
        self.sessions = EndedSessions(self.records)

    @cached_property
    def index(self) -> EpisodeIndex:
        index = self.open_index()
        self.push_async_callback(index.close)
        return index


def open_stores(settings: Settings) -> Stores:
    """Return the configured stores. Raises: ConfigurationError."""
    path = settings.sqlite.path
    return _on_servers(settings) if path is None else _in_file(settings, path)


def _in_file(settings: Settings, path: Path) -> Stores:
    from afterword.streams.stores import sqlite

    file = sqlite.SqliteFile(path)

    def open_index() -> EpisodeIndex:
        from afterword.streams.stores.sqlite_index import SqliteIndex  # only searches need NumPy

        return SqliteIndex(file, settings.embedder.vectors_model)

    async def check() -> str:
        await file.ping()
        return str(path)

    stores = Stores(
        episodes=sqlite.SqliteEpisodes(file),
        messages=sqlite.SqliteMessages(file),
        records=sqlite.SqliteRecords(file),
        open_index=open_index,
        checks={sqlite.STORE: check},
        ping_database=file.ping,
        prepare_database=file.ping,
    )
    stores.push_async_callback(file.close)
    return stores


def _on_servers(settings: Settings) -> Stores:
    from afterword.streams.stores import mongo

    database = mongo.connect(settings.mongo)

    def open_index() -> EpisodeIndex:
        from afterword.streams.stores import qdrant

        return qdrant.open_index(settings.qdrant, settings.embedder)

    async def check_index() -> str:
        # in a thread, because the import takes a while
        qdrant = await asyncio.to_thread(import_module, "afterword.streams.stores.qdrant")
        return str(await qdrant.check(settings.qdrant, settings.embedder))

    stores = Stores(
        episodes=mongo.MongoEpisodes(database),
        messages=mongo.MongoMessages(database),
        records=mongo.MongoRecords(database),
        open_index=open_index,
        checks={mongo.STORE: partial(mongo.check, database), "qdrant": check_index},
        ping_database=partial(mongo.ping, database),
        prepare_database=partial(mongo.ensure_indexes, database),
    )
    stores.push_async_callback(mongo.close, database)
    return stores
