"""Searching the index wherever it is: on a server, in a directory, or in the process that has the directory open."""

from streams.errors import AfterwordError, StoreUnavailable
from streams.settings import Settings
from streams.stores.index import Query, Recalled
from streams.stores.local_index import Search, address_file, search_of_owner
from streams.stores.qdrant import QdrantIndex, open_index
from streams.summarizer.embedders import Embedder, make_embedder
from streams.summarizer.searching import Searcher


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
    """A `Search` on a Qdrant server; connects with the first query."""

    def __init__(self, settings: Settings) -> None:
        self._index: QdrantIndex = open_index(settings.qdrant, settings.embedder)
        self._embedder = make_embedder(settings.embedder)
        self._search: Search = Searcher(self._index, self._embedder)

    async def __call__(self, query: Query) -> list[Recalled]:
        return await self._search(query)

    async def close(self) -> None:
        await self._index.close()
        await _close(self._embedder)


class DirectorySearch:
    """A `Search` in Qdrant's local mode.

    Its owner is asked if there is one. If not, the directory is open for the time of one query: nobody who only reads
    keeps a summarizer from starting.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def __call__(self, query: Query) -> list[Recalled]:
        path = self._settings.qdrant.path
        assert path is not None  # noqa: S101 – who makes it has looked
        try:
            if address_file(path).exists():
                return await search_of_owner(path, query)
        except StoreUnavailable:
            pass  # it has ended without a word; the directory tells whether there is another
        return await self._open_and_search(query) if path.is_dir() else []  # opening it would make it

    async def close(self) -> None:
        """Nothing is held between two queries."""

    async def _open_and_search(self, query: Query) -> list[Recalled]:
        embedder = make_embedder(self._settings.embedder)
        index = open_index(self._settings.qdrant, self._settings.embedder)
        try:
            return await Searcher(index, embedder)(query)
        finally:
            await index.close()
            await _close(embedder)


async def _close(embedder: Embedder | None) -> None:
    if embedder is not None:
        await embedder.close()
