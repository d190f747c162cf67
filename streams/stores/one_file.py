"""The stores in one SQLite file."""

from collections.abc import Awaitable, Callable
from functools import cached_property
from pathlib import Path

from afterword.streams.settings import Settings
from afterword.streams.stores import sqlite
from afterword.streams.stores.budgets import Budgets
from afterword.streams.stores.episodes import EpisodeQueries
from afterword.streams.stores.erasures import Erasures
from afterword.streams.stores.index import EpisodeIndex
from afterword.streams.stores.keys import ApiKeys
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.opening import Stores
from afterword.streams.stores.sqlite_stores import (
    SqliteBudgets,
    SqliteEpisodes,
    SqliteErasures,
    SqliteKeys,
    SqliteMessages,
)


class FileStores(Stores):
    """Stores that share a file, which is made at the first call."""

    def __init__(self, settings: Settings, path: Path) -> None:
        super().__init__()
        self._settings = settings
        self._file = sqlite.SqliteFile(path, settings.sqlite.timeout_seconds)
        self._closing.push_async_callback(self._file.close)

    @cached_property
    def episodes(self) -> EpisodeQueries:
        return SqliteEpisodes(self._file)

    @cached_property
    def messages(self) -> MessageArchive:
        return SqliteMessages(self._file)

    @cached_property
    def budgets(self) -> Budgets:
        return SqliteBudgets(self._file)

    @cached_property
    def erasures(self) -> Erasures:
        return SqliteErasures(self._file)

    @cached_property
    def keys(self) -> ApiKeys:
        return SqliteKeys(self._file)

    @cached_property
    def index(self) -> EpisodeIndex:
        from afterword.streams.stores.sqlite_index import SqliteIndex  # only who searches needs NumPy

        return SqliteIndex(self._file, self._settings.embedder.vectors_model)

    @property
    def checks(self) -> dict[str, Callable[[], Awaitable[str]]]:
        return {sqlite.STORE: self._check}

    async def prepare_database(self) -> None:
        await self._file.ping()

    async def ping_database(self) -> None:
        await self._file.ping()

    async def reach(self) -> None:
        await self._file.ping()

    async def _check(self) -> str:
        await self._file.ping()
        return str(self._file.path)
