"""Messages of tenants that an older version wrote, under an `_id` without their tenant."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from afterword.schemas import MessageDeleted, MessageEdited
from afterword.streams.settings import Settings
from afterword.streams.stores import mongo
from afterword.streams.stores.documents import message_document
from afterword.streams.stores.messages import ArchiveChange, ArchivedMessage, Selection
from afterword.streams.stores.mongo import MongoDatabase, MongoMessages
from tests.samples import a_message

OURS = ArchivedMessage(a_message(tenant_id="a", content="From a."), 0, 7)
THEIRS = ArchivedMessage(a_message(tenant_id="b", content="Not from a."), 0, 5)
EARLIER, KEY, THEIR_KEY = "c1:m1", "c1:m1:a", "c1:m1:b"


@pytest_asyncio.fixture
async def database(make_settings: Callable[..., Settings]) -> AsyncIterator[MongoDatabase]:
    opened = mongo.connect(make_settings().mongo)
    await mongo.ensure_indexes(opened)
    yield opened
    await opened.client.drop_database(opened.name)
    await mongo.close(opened)


@pytest.fixture
def archive(database: MongoDatabase) -> MongoMessages:
    return MongoMessages(database)


async def archived_earlier(database: MongoDatabase, message: ArchivedMessage, **labels: Any) -> None:
    await database["messages"].insert_one({**message_document(message), **labels, "_id": EARLIER})


async def ids(database: MongoDatabase) -> set[str]:
    return {document["_id"] async for document in database["messages"].find({}, {"_id": 1})}


async def unsummarised(archive: MongoMessages, tenant: str) -> list[str]:
    selection = Selection("c1", tenant, unsummarised=True)
    return [found.message.content async for found in archive.newest(selection)]


async def test_it_is_read_by_its_tenant_and_by_no_other(database: MongoDatabase, archive: MongoMessages) -> None:
    await archived_earlier(database, OURS)
    assert await archive.get_many([KEY]) == {KEY: OURS}
    assert await archive.get_many([THEIR_KEY, EARLIER]) == {}
    [ref] = [ref async for ref in archive.all_messages()]
    assert (ref.key, ref.source, ref.content) == (KEY, (0, 7), "From a.")


async def test_it_is_not_stored_a_second_time(database: MongoDatabase, archive: MongoMessages) -> None:
    await archived_earlier(database, OURS)
    await archive.put_many([OURS])
    await archive.assign("c1:1", [KEY])
    assert await ids(database) == {EARLIER}
    assert await unsummarised(archive, "a") == []


async def test_another_tenants_message_takes_neither_its_place_nor_its_label(
    database: MongoDatabase, archive: MongoMessages
) -> None:
    await archived_earlier(database, THEIRS)
    await archive.assign("c1:1", [KEY])
    await archive.put_many([OURS])
    assert await archive.get_many([KEY, THEIR_KEY]) == {KEY: OURS, THEIR_KEY: THEIRS}
    assert await unsummarised(archive, "a") == []
    assert await unsummarised(archive, "b") == ["Not from a."]


@pytest.mark.parametrize("scopes", [{}, {"agent_scopes": ["c1/x"]}])
async def test_what_only_the_summarizer_had_written_goes_to_the_message_when_it_is_archived(
    database: MongoDatabase, archive: MongoMessages, scopes: dict[str, Any]
) -> None:
    await database["messages"].insert_one({"_id": EARLIER, "episode_id": "c1:1", **scopes})
    assert await archive.get_many([KEY]) == {}
    await archive.put_many([OURS])
    assert await unsummarised(archive, "a") == []
    agent = Selection("c1", "a", "x", unsummarised=True)
    assert (await archive.count(agent)).messages == (0 if scopes else 1)
    assert [ref.key async for ref in archive.all_messages() if ref.archived] == [KEY]


@pytest.mark.parametrize("tenant", [None, "b"])
async def test_nobody_else_changes_it(database: MongoDatabase, archive: MongoMessages, tenant: str | None) -> None:
    """Segmenter and summarizer refuse such a change; the archiver has nothing but the key to go by."""
    await archived_earlier(database, OURS)
    who = {"id": "m1", "conversation_id": "c1", "tenant_id": tenant}
    for event in (MessageEdited(**who, content="Not from a."), MessageDeleted(**who)):
        await archive.change(ArchiveChange(event, 0, 9))
    assert await archive.get_many([KEY]) == {KEY: OURS}
    assert await archive.pending_deletions(["c1"], 10) == []


async def test_a_later_label_is_not_replaced_by_an_earlier_one(database: MongoDatabase, archive: MongoMessages) -> None:
    await database["messages"].insert_one({"_id": EARLIER, "episode_id": "c1:1"})
    await archive.assign("c1:2", [KEY])
    await archive.put_many([OURS])
    assert [ref.episode_id async for ref in archive.all_messages() if ref.archived] == ["c1:2"]


async def test_a_message_without_a_tenant_is_under_the_same_key_as_ever(
    database: MongoDatabase, archive: MongoMessages
) -> None:
    message = ArchivedMessage(a_message(), 0, 7)
    await archived_earlier(database, message)
    await archive.put_many([message])
    await archive.assign("c1:1", [EARLIER])
    assert await ids(database) == {EARLIER}
    assert await archive.get_many([EARLIER]) == {EARLIER: message}
    assert await archive.get_many([KEY]) == {}
