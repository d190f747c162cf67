"""Searching the index wherever it is: on a server, in a directory, or in the process that has the directory open."""

from contextlib import suppress
from pathlib import Path

from afterword.streams.errors import AfterwordError, StoreUnavailable
from afterword.streams.settings import Settings
from afterword.streams.stores.index import Query, Recalled
from afterword.streams.stores.local_index import Search, address_file, search_of_owner


class OwnerMissing(AfterwordError):
    """recall needs {field}: it searches one user's episodes, never everybody's"""


def of_owner(user_id: object, tenant_id: object) -> tuple[str, str | None]:
    """Both, if they can be searched by. Raises: OwnerMissing."""
    if not isinstance(user_id, str):
        raise OwnerMissing(field="user_id")
    if tenant_id is not None and not isinstance(tenant_id, str):
        raise OwnerMissing(field="tenant_id")
    return user_id, tenant_id


class ServerSearch:
    """A `Search` on a Qdrant server; connects with the first query. Calls raise ConfigurationError."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opened: Opened | None = None

    async def __call__(self, query: Query) -> list[Recalled]:
        if self._opened is None:
            self._opened = Opened(self._settings)
        return await self._opened.search(query)

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()


class DirectorySearch:
    """A `Search` in Qdrant's local mode. Calls raise ConfigurationError.

    Its owner is asked if there is one. If not, the directory is open for the time of one query: nobody who only reads
    keeps a summarizer from starting.
    """

    def __init__(self, settings: Settings, path: Path) -> None:
        self._settings = settings
        self._path = path

    async def __call__(self, query: Query) -> list[Recalled]:
        if address_file(self._path).exists():
            with suppress(StoreUnavailable):  # it has ended without a word; the directory tells if there is another
                return await search_of_owner(self._path, query)
        return await self._open_and_search(query) if self._path.is_dir() else []  # opening it would make it

    async def close(self) -> None:
        """Nothing is held between two queries."""

    async def _open_and_search(self, query: Query) -> list[Recalled]:
        opened = Opened(self._settings)
        try:
            return await opened.search(query)
        finally:
            await opened.close()


class Opened:
    """The index and the embedder, imported only here: who reads a context needs neither, and they take a second."""

    def __init__(self, settings: Settings) -> None:
        from afterword.streams.stores.qdrant import open_index
        from afterword.streams.summarizer.embedders import make_embedder
        from afterword.streams.summarizer.searching import Searcher

        self._embedder = make_embedder(settings.embedder)
        self._index = open_index(settings.qdrant, settings.embedder)
        self.search: Search = Searcher(self._index, self._embedder)

    async def close(self) -> None:
        await self._index.close()
        if self._embedder is not None:
            await self._embedder.close()
