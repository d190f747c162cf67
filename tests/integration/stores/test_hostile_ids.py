"""Ids and names that MongoDB would take for operators, were they not only values."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from afterword.schemas.ids import message_key
from afterword.streams.settings import Mongo
from afterword.streams.stores import mongo
from afterword.streams.stores.episodes import RollingRow
from afterword.streams.stores.messages import ArchivedMessage, Selection
from afterword.streams.stores.mongo import MongoDatabase, MongoEpisodes, MongoMessages
from tests.hostile import IDS
from tests.samples import NOON, a_message, a_stored_episode, a_summary

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
    await archive.assign(hostile, [message_key(hostile, hostile)])
    assert await newest(archive, hostile) == [sent]
    assert await archive.get_many([message_key(hostile, hostile)]) == {message_key(hostile, hostile): sent}
    assert [d for d in await everything(database, "messages") if d in before] == before
    assert len(await everything(database, "messages")) == 2


@pytest.mark.parametrize("hostile", IDS)
async def test_episodes_of_other_conversations_are_neither_found_nor_changed(
    database: MongoDatabase, hostile: str
) -> None:
    episodes, collections = MongoEpisodes(database), ("episodes", "conversations", "conversation_summaries")
    row = RollingRow("innocent", 1, "So far.", 3, first_ordinal=1, last_ordinal=1, updated_at=NOON)
    await episodes.add(a_stored_episode(conversation_id="innocent"))
    await episodes.advance(a_summary(1, "innocent"))
    await episodes.put_row(row, after=None)
    before = await everything(database, *collections)
    for find in (episodes.find, episodes.conversation, episodes.latest_row):
        assert await find(hostile) is None
    stored = a_stored_episode(conversation_id=hostile)
    await episodes.add(stored)
    await episodes.advance(a_summary(2, hostile, user_id=hostile, title=hostile))
    await episodes.put_row(replace(row, conversation_id=hostile, content=hostile), after=None)
    assert await episodes.find(stored.summary.episode_id) == stored
    found = await everything(database, *collections)
    assert [document for document in found if document in before] == before
    assert len(found) == 6
