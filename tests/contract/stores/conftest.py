"""Each contract test runs on the store in memory and on a real server."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from streams.stores import mongo
from streams.stores.budgets import Budgets, MemoryBudgets
from streams.stores.episodes import EpisodeStore
from streams.stores.memory import MemoryEpisodes, MemoryMessages
from streams.stores.memory_replies import MemoryReplies
from streams.stores.messages import MessageArchive
from streams.stores.mongo import Database
from streams.stores.mongo_budgets import MongoBudgets
from streams.stores.mongo_episodes import MongoEpisodes
from streams.stores.mongo_messages import MongoMessages
from streams.stores.mongo_replies import MongoReplies
from streams.stores.replies import ReplyCache


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
