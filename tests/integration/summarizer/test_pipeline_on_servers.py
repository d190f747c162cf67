"""The reconciler's promises again, with a MongoDB server and over Qdrant's protocol."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from pydantic import SecretStr

from afterword.streams.errors import StoreUnavailable
from afterword.streams.settings import EmbedderSettings, Mongo, Qdrant
from afterword.streams.stores import mongo
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.stores.mongo import MongoEpisodes, MongoMessages
from afterword.streams.stores.qdrant import QdrantIndex, connect_qdrant, open_index
from tests.qdrant_server import QdrantServer
from tests.samples import NOON, a_cause, a_message
from tests.summarizer_world import EPISODES, NO_FAULTS, Crash, Faults, Slowly, Worded, World, crash

COLLECTIONS = ("episodes", "conversation_summaries", "conversations", "messages")


@pytest_asyncio.fixture
async def stores(mongo_settings: Mongo) -> AsyncIterator[dict[str, Any]]:
    database = mongo.connect(mongo_settings)
    await mongo.ensure_indexes(database)
    async with QdrantServer() as server:
        client = connect_qdrant(Qdrant(url=server.url))
        yield {
            "episodes": MongoEpisodes(database),
            "messages": MongoMessages(database),
            "index": QdrantIndex(client, "episodes"),
            "raw": database,
            "client": client,
        }
        await client.close()
    await database.client.drop_database(database.name)
    await mongo.close(database)


def around(proxies: Any, stores: dict[str, Any]) -> dict[str, Any]:
    return {name: proxies.around(stores[name]) for name in ("episodes", "messages", "index")}


async def state(stores: dict[str, Any]) -> dict[str, Any]:
    """Return everything stored except the texts of rows and the counters of writes, which a crash may change."""
    found: dict[str, Any] = {
        name: {document["_id"]: document async for document in stores["raw"][name].find({})} for name in COLLECTIONS
    }
    rows = await stores["episodes"].rows("c1")
    found["conversation_summaries"] = [(one, bool(row.content)) for row in rows for one in row.inputs]
    for known in found["conversations"].values():
        del known["revision"]
    return {**found, "points": await stores["index"].revisions(list(found["episodes"]))}


async def clear(stores: dict[str, Any], times: int) -> None:
    """Empty the database, and use another collection of the index."""
    for name in COLLECTIONS:
        await stores["raw"][name].delete_many({})
    stores["index"] = QdrantIndex(stores["client"], f"episodes-{times}")


@pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
async def test_a_crash_at_any_call_ends_like_an_undisturbed_run(stores: dict[str, Any], after: bool) -> None:
    counting = Faults(0, after=False, fault=crash)
    await World().run(EPISODES, counting, **around(counting, stores))
    expected = await state(stores)
    for at in range(1, counting.calls + 1):
        await clear(stores, at)
        world, faults = World(), Faults(at, after, crash)
        with pytest.raises(Crash):
            await world.run(EPISODES, faults, **around(faults, stores))
        await world.run(EPISODES, **around(NO_FAULTS, stores))
        assert await state(stores) == expected, f"crash at call {at}"
        assert all(len(contents) == 1 for contents in world.contents_by_event_id().values())


async def test_several_workers_on_the_same_episodes_store_and_say_the_same(stores: dict[str, Any]) -> None:
    world = World()

    async def work(number: int) -> None:
        ours = around(Slowly([number, 0, 3 * number] * 20), stores)
        clock = lambda: NOON + timedelta(hours=number)  # noqa: E731 – a clock of its own for each worker
        await world.run(EPISODES, **ours, provider=Worded(f"worker {number}"), clock=clock)

    await asyncio.gather(*(work(number) for number in range(5)))
    assert {event_id: len(texts) for event_id, texts in world.contents_by_event_id().items()} == {
        "c1:1:1": 1,
        "c1:2:1": 1,
        "c1:3:1": 1,
    }
    found = await stores["episodes"].lookup([episode.episode_id for episode in EPISODES])
    assert {event.episode_id: event for event in world.topic.events} == {key: one.event for key, one in found.items()}
    known = await stores["episodes"].conversation("c1")
    assert (known.episode_count, known.message_count, known.title) == (3, 9, found["c1:1"].summary.title)
    assert [ordinal for row in await stores["episodes"].rows("c1") for ordinal, _ in row.inputs] == [1, 2, 3]


async def test_a_server_that_is_away_is_waited_for(closed_port: int) -> None:
    world = World()
    away = mongo.connect(Mongo(uri=SecretStr(f"mongodb://127.0.0.1:{closed_port}")).answering_within(0.2))
    unreachable = open_index(Qdrant(url=f"http://127.0.0.1:{closed_port}"), EmbedderSettings(provider="none"))
    reconciler = world.reconciler(episodes=MongoEpisodes(away), index=unreachable)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await reconciler.handle(EPISODES[0], a_cause(1))
    assert world.topic.events == []
    with pytest.raises(StoreUnavailable):
        await MongoMessages(away).assign("c1:1", [ArchivedMessage(a_message(), 0, 0)])
    await mongo.close(away)
    await unreachable.close()
