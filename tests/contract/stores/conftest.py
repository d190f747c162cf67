"""Each contract test runs on the store in memory and on a real server."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from afterword.streams.settings import Qdrant
from afterword.streams.stores import mongo
from afterword.streams.stores.budgets import Budgets
from afterword.streams.stores.episodes import EpisodeQueries
from afterword.streams.stores.erasures import Erasures
from afterword.streams.stores.index import EpisodeIndex
from afterword.streams.stores.keys import ApiKeys
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.mongo import (
    MongoBudgets,
    MongoDatabase,
    MongoEpisodes,
    MongoErasures,
    MongoKeys,
    MongoMessages,
)
from afterword.streams.stores.qdrant import QdrantIndex, connect_qdrant
from afterword.streams.stores.sqlite import SqliteFile
from afterword.streams.stores.sqlite_index import SqliteIndex
from tests.doubles.index import MemoryIndex
from tests.doubles.stores import (
    MemoryBudgets,
    MemoryEpisodes,
    MemoryErasures,
    MemoryKeys,
    MemoryMessages,
)
from tests.qdrant_server import QdrantServer


@pytest_asyncio.fixture
async def database(make_settings) -> AsyncIterator[MongoDatabase]:
    handle = mongo.connect(make_settings().mongo)
    await mongo.ensure_indexes(handle)
    yield handle
    await handle.client.drop_database(handle.name)
    await mongo.close(handle)


@pytest.fixture(params=["memory", "mongo"])
def episodes(request: pytest.FixtureRequest) -> EpisodeQueries:
    return MemoryEpisodes() if request.param == "memory" else MongoEpisodes(request.getfixturevalue("database"))


@pytest.fixture(params=["memory", "mongo"])
def messages(request: pytest.FixtureRequest) -> MessageArchive:
    return MemoryMessages() if request.param == "memory" else MongoMessages(request.getfixturevalue("database"))


@pytest.fixture(params=["memory", "mongo"])
def erasures(request: pytest.FixtureRequest) -> Erasures:
    return MemoryErasures() if request.param == "memory" else MongoErasures(request.getfixturevalue("database"))


@pytest.fixture(params=["memory", "mongo"])
def keys(request: pytest.FixtureRequest) -> ApiKeys:
    return MemoryKeys() if request.param == "memory" else MongoKeys(request.getfixturevalue("database"))


@pytest.fixture(params=["memory", "mongo"])
def budgets(request: pytest.FixtureRequest) -> Budgets:
    return MemoryBudgets() if request.param == "memory" else MongoBudgets(request.getfixturevalue("database"))


@pytest.fixture
def double() -> EpisodeIndex:
    return MemoryIndex()


@pytest.fixture
def memory() -> EpisodeIndex:
    return SqliteIndex(SqliteFile(None))


@pytest_asyncio.fixture
async def local(tmp_path: Path) -> AsyncIterator[EpisodeIndex]:
    index = SqliteIndex(SqliteFile(tmp_path / "afterword.sqlite"))
    yield index
    await index.close()


@pytest_asyncio.fixture
async def stand_in() -> AsyncIterator[EpisodeIndex]:
    async with QdrantServer() as server:
        index = QdrantIndex(connect_qdrant(Qdrant(url=server.url)), "episodes")
        yield index
        await index.close()


@pytest_asyncio.fixture
async def server(qdrant_url: str, unique: Callable[[str], str]) -> AsyncIterator[EpisodeIndex]:
    """Qdrant's own, where there is one."""
    index = QdrantIndex(connect_qdrant(Qdrant(url=qdrant_url)), unique("episodes"))
    yield index
    await index.close()
    async with httpx.AsyncClient() as client:
        await client.delete(f"{qdrant_url}/collections/{index.collection}")


@pytest.fixture(params=["memory", "local", "stand_in", "server", "double"])
def index(request: pytest.FixtureRequest) -> EpisodeIndex:
    made: EpisodeIndex = request.getfixturevalue(request.param)
    return made
