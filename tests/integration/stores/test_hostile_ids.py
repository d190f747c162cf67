"""Ids and names that look like MongoDB's operators are only values."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from afterword.schemas.ids import message_key
from afterword.streams.settings import Mongo
from afterword.streams.stores import mongo
from afterword.streams.stores.episodes import find_episode
from afterword.streams.stores.messages import ArchivedMessage, Selection
from afterword.streams.stores.mongo import MongoDatabase, MongoEpisodes, MongoMessages
from tests.hostile import IDS
from tests.samples import a_conversation, a_message, a_row, a_stored_episode

METADATA = {"$where": "sleep(1000)", "$set": {"user_id": "mallory"}, "a.b": {"$gt": ""}, "": 1, "%24": [{"$ne": 1}]}
INNOCENT = ArchivedMessage(a_message("m1", "innocent"), 0, 1)


@pytest_asyncio.fixture
async def database(mongo_settings: Mongo) -> AsyncIterator[MongoDatabase]:
    opened = mongo.connect(mongo_settings)
    await mongo.ensure_indexes(opened)
    yield opened
    await mongo.close(opened)


async def everything(database: MongoDatabase, *collections: str) -> list[object]:
    return [document for name in collections async for document in database[name].find({}, sort=[("_id", 1)])]


async def newest(archive: MongoMessages, conversation_id: str) -> list[ArchivedMessage]:
    return [found async for found in archive.newest(Selection(conversation_id, None))]


@pytest.mark.parametrize("hostile", IDS)
async def test_the_archive_finds_and_changes_only_what_has_exactly_this_id(
    database: MongoDatabase, hostile: str
) -> None:
    archive = MongoMessages(database)
    await archive.put_many([INNOCENT])
    before = await everything(database, "messages")
    sent = ArchivedMessage(a_message(hostile, hostile, user_id=hostile, metadata=METADATA), 0, 2)
    assert await newest(archive, hostile) == []
    assert await archive.get_many([hostile, message_key(hostile, hostile)]) == {}
    await archive.put_many([sent])
    await archive.assign(hostile, [sent])
    assert await newest(archive, hostile) == [sent]
    assert await archive.get_many([message_key(hostile, hostile)]) == {message_key(hostile, hostile): sent}
    assert [d for d in await everything(database, "messages") if d in before] == before
    assert len(await everything(database, "messages")) == 2


@pytest.mark.parametrize("hostile", IDS)
async def test_episodes_of_other_conversations_are_neither_found_nor_changed(
    database: MongoDatabase, hostile: str
) -> None:
    episodes, collections = MongoEpisodes(database), ("episodes", "conversations", "conversation_summaries")
    row = a_row(1, "innocent")
    await episodes.put(a_stored_episode(conversation_id="innocent"), None)
    await episodes.put_conversation(a_conversation("innocent"), None)
    await episodes.put_row(row, None)
    before = await everything(database, *collections)
    assert await episodes.lookup([hostile]) == {}
    for find in (episodes.conversation, episodes.latest_row):
        assert await find(hostile) is None
    stored = a_stored_episode(conversation_id=hostile)
    await episodes.put(stored, None)
    await episodes.put_conversation(a_conversation(hostile, user_id=hostile, title=hostile), None)
    await episodes.put_row(replace(row, conversation_id=hostile, content=hostile), None)
    assert await find_episode(episodes, stored.summary.episode_id) == stored
    found = await everything(database, *collections)
    assert [document for document in found if document in before] == before
    assert len(found) == 6
