"""Each contract test runs on the store in memory and on a real server."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from afterword.streams.stores import mongo
from afterword.streams.stores.budgets import Budgets
from afterword.streams.stores.episodes import EpisodeStore
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.mongo import Database, MongoBudgets, MongoEpisodes, MongoMessages, MongoReplies
from afterword.streams.stores.replies import ReplyCache
from tests.doubles.stores import MemoryBudgets, MemoryEpisodes, MemoryMessages, MemoryReplies


@pytest_asyncio.fixture
async def database(make_settings) -> AsyncIterator[Database]:
    handle = mongo.connect(make_settings().mongo)
    await mongo.ensure_indexes(handle)
    yield handle
    await handle.client.drop_database(handle.name)
    await mongo.close(handle)


@pytest.fixture(params=["memory", "mongo"])
def episodes(request: pytest.FixtureRequest) -> EpisodeStore:
    return MemoryEpisodes() if request.param == "memory" else MongoEpisodes(request.getfixturevalue("database"))


@pytest.fixture(params=["memory", "mongo"])
def messages(request: pytest.FixtureRequest) -> MessageArchive:
    return MemoryMessages() if request.param == "memory" else MongoMessages(request.getfixturevalue("database"))


@pytest.fixture(params=["memory", "mongo"])
def replies(request: pytest.FixtureRequest) -> ReplyCache:
    return MemoryReplies() if request.param == "memory" else MongoReplies(request.getfixturevalue("database"))


@pytest.fixture(params=["memory", "mongo"])
def budgets(request: pytest.FixtureRequest) -> Budgets:
    return MemoryBudgets() if request.param == "memory" else MongoBudgets(request.getfixturevalue("database"))
