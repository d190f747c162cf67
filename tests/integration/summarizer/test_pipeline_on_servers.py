"""The pipeline's promises once more, on a real MongoDB server and the index in a directory."""

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
from afterword.streams.stores.mongo import MongoEpisodes, MongoMessages
from afterword.streams.stores.opening import open_stores
from afterword.streams.stores.qdrant import open_index
from tests.samples import NOON
from tests.summarizer_world import EPISODES, NO_FAULTS, Crash, Faults, Slowly, Worded, World, crash


@pytest_asyncio.fixture
async def stores(make_settings) -> AsyncIterator[dict[str, Any]]:
    settings = make_settings(embedder={"provider": "ollama", "model": "fixed"})
    database = mongo.connect(settings.mongo)
    await mongo.ensure_indexes(database)
    async with open_stores(settings) as opened:
        yield {
            "episodes": MongoEpisodes(database),
            "messages": MongoMessages(database),
            "index": opened.index,
            "raw": database,
        }
    await database.client.drop_database(database.name)
    await mongo.close(database)


def around(proxies: Any, stores: dict[str, Any]) -> dict[str, Any]:
    return {name: proxies.around(stores[name]) for name in ("episodes", "messages", "index")}


async def state(stores: dict[str, Any]) -> dict[str, Any]:
    names = ("episodes", "conversation_summaries", "conversations", "messages")
    found: dict[str, Any] = {
        name: {document["_id"]: document async for document in stores["raw"][name].find({})} for name in names
    }
    return {**found, "points": sorted(await stores["index"].revisions(list(found["episodes"])))}


async def clear(stores: dict[str, Any]) -> None:
    for name in ("episodes", "conversation_summaries", "conversations", "messages"):
        await stores["raw"][name].delete_many({})


async def test_an_episode_is_stored_under_the_names_of_the_contract(stores: dict[str, Any]) -> None:
    summary = await World().pipeline(**around(NO_FAULTS, stores)).process(EPISODES[1])
    found = await state(stores)
    episode = found["episodes"]["c1:2"]
    kept = {"fingerprint", "close_reason", "overlap_ids", "participants", "as_of", "changes"}
    kept |= {"made_by", "announced_by", "built_on", "earlier"}
    assert set(episode) == {"_id", "last_offset", *type(summary).model_fields, *kept}
    assert episode["started_at"] == summary.started_at
    assert found["conversations"]["c1"] == {
        "_id": "c1",
        "title": summary.title,
        "user_id": "u1",
        "tenant_id": "t1",
        "episode_count": 1,
        "last_ordinal": 2,
        "message_count": 3,
        "updated_at": summary.created_at,
        "token_count": 100,
        "last_revision": 1,
    }
    row = found["conversation_summaries"]["c1:1"]
    assert row.keys() == {
        *("_id", "conversation_id", "row", "content", "token_count", "first_ordinal", "last_ordinal", "updated_at"),
        *("last_revision", "as_of"),
    }
    assert found["messages"] == {f"c1:m{n}:t1": {"_id": f"c1:m{n}:t1", "episode_id": "c1:2"} for n in (3, 4, 5)}
    assert found["points"] == ["c1:2"]


@pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
async def test_a_crash_at_any_call_ends_like_an_undisturbed_run(stores: dict[str, Any], after: bool) -> None:
    counting = Faults(0, after=False, fault=crash)
    await World().run(EPISODES, counting, **around(counting, stores))
    expected = await state(stores)
    for at in range(1, counting.calls + 1):
        await clear(stores)
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
        pipeline = world.pipeline(**ours, provider=Worded(f"worker {number}"), clock=clock)
        for episode in EPISODES:
            await pipeline.process(episode)

    await asyncio.gather(*(work(number) for number in range(5)))
    assert {event_id: len(texts) for event_id, texts in world.contents_by_event_id().items()} == {
        "c1:1:1": 1,
        "c1:2:1": 1,
        "c1:3:1": 1,
    }
    found = await state(stores)
    assert {event.episode_id: event.title for event in world.topic.events} == {
        key: document["title"] for key, document in found["episodes"].items()
    }
    assert found["conversations"]["c1"]["message_count"] == 9
    assert found["conversations"]["c1"]["title"] == found["episodes"]["c1:3"]["title"]
    (row,) = [row for row in found["conversation_summaries"].values() if row["last_ordinal"] == 3]
    assert row["content"] == found["episodes"]["c1:3"]["rolling_summary"]


async def test_a_server_that_is_away_is_waited_for(stores: dict[str, Any], closed_port: int) -> None:
    world = World()
    away = mongo.connect(Mongo(uri=SecretStr(f"mongodb://127.0.0.1:{closed_port}"), timeout_seconds=0.2))
    unreachable = open_index(Qdrant(url=f"http://127.0.0.1:{closed_port}"), EmbedderSettings(provider="none"))
    pipeline = world.pipeline(episodes=MongoEpisodes(away), index=unreachable)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await pipeline.process(EPISODES[0])
    assert world.topic.events == []
    with pytest.raises(StoreUnavailable):
        await MongoMessages(away).assign("c1:1", ["c1:m1"])
    await mongo.close(away)
    await unreachable.close()
