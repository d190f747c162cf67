"""Each contract test runs on SQLite, in memory and in a file, and on servers."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from afterword.streams.settings import Mongo, Qdrant
from afterword.streams.stores import mongo
from afterword.streams.stores.bookkeeping import ApiKeys, Budgets, Erasures, Records
from afterword.streams.stores.episodes import EpisodeQueries
from afterword.streams.stores.index import EpisodeIndex
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.mongo import MongoDatabase, MongoEpisodes, MongoMessages, MongoRecords
from afterword.streams.stores.qdrant import QdrantIndex, connect_qdrant
from afterword.streams.stores.sqlite import SqliteEpisodes, SqliteFile, SqliteMessages, SqliteRecords
from afterword.streams.stores.sqlite_index import SqliteIndex
from tests.qdrant_answers import ROUTES, Answer
from tests.qdrant_engine import routes_in
from tests.qdrant_server import QdrantServer

BACKENDS = ("memory", "file", "mongo")


@pytest_asyncio.fixture
async def database(mongo_settings: Mongo) -> AsyncIterator[MongoDatabase]:
    handle = mongo.connect(mongo_settings)
    await mongo.ensure_indexes(handle)
    yield handle
    await handle.client.drop_database(handle.name)
    await mongo.close(handle)


@pytest_asyncio.fixture
async def memory() -> AsyncIterator[SqliteFile]:
    opened = SqliteFile(None)
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def file(tmp_path: Path) -> AsyncIterator[SqliteFile]:
    opened = SqliteFile(tmp_path / "afterword.sqlite")
    yield opened
    await opened.close()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> SqliteFile | MongoDatabase:
    return request.getfixturevalue("database" if request.param == "mongo" else request.param)


@pytest.fixture
def episodes(backend: SqliteFile | MongoDatabase) -> EpisodeQueries:
    return SqliteEpisodes(backend) if isinstance(backend, SqliteFile) else MongoEpisodes(backend)


@pytest.fixture
def messages(backend: SqliteFile | MongoDatabase) -> MessageArchive:
    return SqliteMessages(backend) if isinstance(backend, SqliteFile) else MongoMessages(backend)


@pytest.fixture
def records(backend: SqliteFile | MongoDatabase) -> Records:
    return SqliteRecords(backend) if isinstance(backend, SqliteFile) else MongoRecords(backend)


@pytest.fixture
def erasures(records: Records) -> Erasures:
    return Erasures(records)


@pytest.fixture
def keys(records: Records) -> ApiKeys:
    return ApiKeys(records)


@pytest.fixture
def budgets(records: Records) -> Budgets:
    return Budgets(records)


@asynccontextmanager
async def of_server(routes: Sequence[tuple[str, str, Answer]] = ROUTES) -> AsyncIterator[EpisodeIndex]:
    async with QdrantServer(routes=routes) as server:
        index = QdrantIndex(connect_qdrant(Qdrant(url=server.url)), "episodes")
        yield index
        await index.close()


@pytest_asyncio.fixture
async def engine(tmp_path: Path) -> AsyncIterator[EpisodeIndex]:
    """Qdrant's own engine behind HTTP."""
    async with of_server(routes_in(tmp_path)) as index:
        yield index


@pytest_asyncio.fixture
async def stand_in() -> AsyncIterator[EpisodeIndex]:
    async with of_server() as index:
        yield index


@pytest.fixture
def index_beside(request: pytest.FixtureRequest, backend: SqliteFile | MongoDatabase) -> EpisodeIndex:
    """Return the index that goes with the database: in the same file, or in Qdrant."""
    if isinstance(backend, SqliteFile):
        return SqliteIndex(backend)
    made: EpisodeIndex = request.getfixturevalue("stand_in")
    return made


@pytest_asyncio.fixture
async def server(qdrant_url: str, unique: Callable[[str], str]) -> AsyncIterator[EpisodeIndex]:
    """Return a real Qdrant server if there is one, else the stand-in."""
    index = QdrantIndex(connect_qdrant(Qdrant(url=qdrant_url)), unique("episodes"))
    yield index
    await index.close()
    async with httpx.AsyncClient() as client:
        await client.delete(f"{qdrant_url}/collections/{index.collection}")


@pytest.fixture(params=["memory", "file", "stand_in", "engine", "server"])
def index(request: pytest.FixtureRequest) -> EpisodeIndex:
    made: SqliteFile | EpisodeIndex = request.getfixturevalue(request.param)
    return SqliteIndex(made) if isinstance(made, SqliteFile) else made


@pytest_asyncio.fixture
async def stand_in_of_model() -> AsyncIterator[Callable[[str], EpisodeIndex]]:
    async with QdrantServer() as server, AsyncExitStack() as closing:

        def opened(model: str) -> EpisodeIndex:
            index = QdrantIndex(connect_qdrant(Qdrant(url=server.url)), "episodes", model)
            closing.push_async_callback(index.close)
            return index

        yield opened


@pytest.fixture(params=["memory", "file", "stand_in_of_model"])
def index_of_model(request: pytest.FixtureRequest) -> Callable[[str], EpisodeIndex]:
    """Return a function that opens the same index for an embedder's model."""
    made: SqliteFile | Callable[[str], EpisodeIndex] = request.getfixturevalue(request.param)
    return partial(SqliteIndex, made) if isinstance(made, SqliteFile) else made
