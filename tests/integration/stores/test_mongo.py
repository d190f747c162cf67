import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
import pytest_asyncio
from pydantic import SecretStr
from pymongo import ReadPreference, WriteConcern
from pymongo.monitoring import CommandListener, CommandStartedEvent
from pymongo.read_concern import ReadConcern

from afterword.schemas import MessageDeleted, MessageEdited
from afterword.streams.errors import ConfigurationError, StoreUnavailable
from afterword.streams.settings import Mongo
from afterword.streams.stores import mongo
from afterword.streams.stores.messages import ArchiveChange, ArchivedMessage, DeletedMessage, Selection
from afterword.streams.stores.mongo import MongoDatabase, MongoEpisodes, MongoMessages, MongoRecords
from tests.samples import NOON, a_message, a_row, a_stored_episode

ROW = a_row()


@pytest_asyncio.fixture
async def away(closed_port: int) -> AsyncIterator[MongoDatabase]:
    uri = SecretStr(f"mongodb://someone:secret@127.0.0.1:{closed_port}")
    database = mongo.connect(Mongo(uri=uri).answering_within(0.1))
    yield database
    await mongo.close(database)


async def drained(items: AsyncIterator[object]) -> None:
    async for _ in items:
        pass


# every query of episodes, rows and conversations is `lookup`, `rows` or `put` with other conditions
CALLS: dict[str, Callable[[MongoDatabase], Awaitable[object]]] = {
    "ping": mongo.ping,
    "ensure_indexes": mongo.ensure_indexes,
    "MongoEpisodes.lookup": lambda db: MongoEpisodes(db).lookup(["c1:1"]),
    "MongoEpisodes.put": lambda db: MongoEpisodes(db).put(a_stored_episode(), None),
    "MongoEpisodes.holding": lambda db: MongoEpisodes(db).holding("c1", "m1"),
    "MongoEpisodes.rows": lambda db: MongoEpisodes(db).rows("c1", 1),
    "MongoEpisodes.totals": lambda db: MongoEpisodes(db).totals("c1"),
    "MongoEpisodes.put_row": lambda db: MongoEpisodes(db).put_row(ROW, None),
    "MongoEpisodes.conversations_of": lambda db: MongoEpisodes(db).conversations_of("u1", None, None, 1),
    "MongoEpisodes.count": lambda db: MongoEpisodes(db).count(),
    "MongoRecords.read_all": lambda db: MongoRecords(db).read_all("erasures"),
    "MongoRecords.read_some": lambda db: MongoRecords(db).read_some("erasures", ["k"]),
    "MongoRecords.replace": lambda db: MongoRecords(db).replace("erasures", "k", None, "{}"),
    "MongoRecords.replace by nothing": lambda db: MongoRecords(db).replace("erasures", "k", "{}", None),
    "MongoMessages.put_many": lambda db: MongoMessages(db).put_many([ArchivedMessage(a_message(), 0, 0)]),
    "MongoMessages.assign": lambda db: MongoMessages(db).assign("c1:1", [ArchivedMessage(a_message(), 0, 0)]),
    "MongoMessages.present_users": lambda db: MongoMessages(db).present_users("c1", None),
    "MongoMessages.newest": lambda db: drained(MongoMessages(db).newest(Selection("c1", None))),
    "MongoMessages.count": lambda db: MongoMessages(db).count(Selection("c1", None)),
    "MongoMessages.total": lambda db: MongoMessages(db).total(),
    "MongoMessages.pending": lambda db: MongoMessages(db).pending("u1", None, 1, 1, NOON),
    "MongoMessages.conversations_of": lambda db: MongoMessages(db).conversations_of("u1", None, None, 1),
    "MongoMessages.owners": lambda db: MongoMessages(db).owners(["c1"]),
    "MongoMessages.get_many": lambda db: MongoMessages(db).get_many(["c1:m1"]),
    "MongoMessages.texts": lambda db: MongoMessages(db).texts(["c1:m1"], 10),
    "MongoMessages.all_messages": lambda db: drained(MongoMessages(db).all_messages()),
    "MongoEpisodes.facts_of": lambda db: MongoEpisodes(db).facts_of("u1", None, 1),
    "MongoEpisodes.usage": lambda db: MongoEpisodes(db).usage("day"),
    "MongoEpisodes.users": lambda db: MongoEpisodes(db).users(None, "", None, 1),
    "MongoMessages.states": lambda db: MongoMessages(db).states(["c1:m1"]),
    "MongoMessages.expire": lambda db: MongoMessages(db).expire(NOON, 1),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_absent_mongodb_is_unavailable_to_every_call(
    away: MongoDatabase, call: Callable[[MongoDatabase], Awaitable[object]]
) -> None:
    with pytest.raises(StoreUnavailable, match="mongodb") as raised:
        async with asyncio.timeout(mongo.TIMEOUT_SECONDS / 2):
            await call(away)
    assert "secret" not in str(raised.value)
    assert "127.0.0.1" not in str(raised.value)


@pytest.mark.parametrize(
    "asked", ["retryReads=true", "readConcernLevel=local&readPreference=secondaryPreferred&w=1&journal=false"]
)
async def test_reads_and_writes_are_majority_whatever_the_uri_says(mongo_settings: Mongo, asked: str) -> None:
    plain = mongo_settings
    separator = "&" if "?" in plain.uri.get_secret_value() else "/?"
    uri = SecretStr(plain.uri.get_secret_value() + separator + asked)
    database = mongo.connect(plain.model_copy(update={"uri": uri}))
    options = database.read_concern, database.read_preference, database.write_concern
    assert options == (ReadConcern("majority"), ReadPreference.PRIMARY, WriteConcern(w="majority", j=True))
    for call in CALLS.values():  # the server takes it of every call
        await call(database)
    await database.client.drop_database(database.name)
    await mongo.close(database)


async def test_indexes_may_be_created_again(mongo_settings: Mongo) -> None:
    database = mongo.connect(mongo_settings)
    await mongo.ping(database)
    for _ in range(2):
        await mongo.ensure_indexes(database)
    first = [("conversation_id", 1), ("source.offset", 1)]
    assert first in [index["key"] for index in (await database["messages"].index_information()).values()]
    await database.client.drop_database(database.name)
    await mongo.close(database)


class SuspendedArchive(MongoMessages):
    """An archive whose process is suspended between a read and the next write, while another archiver goes on."""

    def __init__(self, database: MongoDatabase, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(database)
        self._meanwhile = meanwhile
        self._was_suspended = False

    async def _documents(self, keys: Sequence[str], *fields: Any) -> dict[str, Mapping[str, Any]]:
        found = await super()._documents(keys, *fields)
        if not self._was_suspended:
            self._was_suspended = True
            await self._meanwhile()
        return found


@pytest.mark.parametrize("by", ["archiver", "summarizer"])
@pytest.mark.parametrize("change", ["edited", "deleted", "nothing"])
async def test_suspended_archiver_undoes_no_change(mongo_settings: Mongo, change: str, by: str) -> None:
    database = mongo.connect(mongo_settings)
    message, archive = ArchivedMessage(a_message(), 0, 0), MongoMessages(database)
    who = {"id": "m1", "conversation_id": "c1"}
    changes = {"edited": MessageEdited(**who, content="As it is now."), "deleted": MessageDeleted(**who)}

    async def meanwhile() -> None:
        if by == "archiver":
            await archive.put_many([message])
        if change in changes:
            await archive.change(ArchiveChange(changes[change], 0, 7))

    await archive.assign("c1:1", [ArchivedMessage(a_message(), 0, 0)])
    await SuspendedArchive(database, meanwhile).put_many([message])
    states = await archive.states(["c1:m1"])
    edited = ArchivedMessage(a_message(content="As it is now."), 0, 0, changed=7)
    assert states["c1:m1"] == {"edited": edited, "deleted": DeletedMessage(7), "nothing": message}[change]
    assert await archive.get_many(["c1:m1"]) == ({} if change == "deleted" else states)
    if change == "deleted":
        assert await database["messages"].find_one({}) == {"_id": "c1:m1", "deleted": True, "offset": 7}
    await database.client.drop_database(database.name)
    await mongo.close(database)


async def test_scan_has_a_longer_timeout_that_the_server_enforces(mongo_settings: Mongo) -> None:
    database = mongo.connect(mongo_settings)
    commands: list[Mapping[str, Any]] = []

    class Listener(CommandListener):
        def started(self, event: CommandStartedEvent) -> None:
            commands.append(event.command)

        def succeeded(self, event: Any) -> None: ...

        def failed(self, event: Any) -> None: ...

    uri = mongo_settings.uri.get_secret_value()
    client: Any = mongo.Client(uri, event_listeners=[Listener()], tz_aware=True)
    heard = client[database.name]
    await MongoEpisodes(heard).usage("day")
    await MongoEpisodes(heard).users(None, "", None, 1)
    await mongo.ensure_indexes(heard)

    def limits(name: str) -> list[float]:
        return [one["maxTimeMS"] / 1000 for one in commands if name in one]

    assert len(limits("aggregate")) == 2
    assert all(mongo.TIMEOUT_SECONDS < limit <= mongo.SCAN_SECONDS for limit in limits("aggregate"))
    assert all(limit > mongo.SCAN_SECONDS for limit in limits("createIndexes"))
    commands.clear()
    await mongo.ensure_indexes(heard)
    assert [one for one in commands if "createIndexes" in one] == []
    await database.client.drop_database(database.name)
    client.close()
    await mongo.close(database)


class Ferret:
    """A database like motor's, of a FerretDB server."""

    name = "afterword"

    async def command(self, _: str) -> Mapping[str, Any]:
        return {"version": "7.0.42", "ferretdbVersion": "v1.24.2"}


@pytest.mark.parametrize("use", [mongo.check, mongo.ensure_indexes])
async def test_server_with_wrong_answers_is_refused_by_name(use: Callable[[Any], Awaitable[object]]) -> None:
    with pytest.raises(ConfigurationError, match=r"AFTERWORD_MONGO__URI: FerretDB v1\.24\.2 cannot be used"):
        await use(Ferret())
