"""The same fingerprint, prompt and model are never sent to an LLM twice, also across revisions and rebuilds."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from afterword.schemas import SummaryCreated, Usage
from afterword.streams.settings import Llm
from afterword.streams.stores import mongo
from afterword.streams.stores.mongo import MongoDatabase, MongoReplies
from afterword.streams.summarizer.providers import Provider
from tests import openai_server as llm
from tests.doubles.llm import a_provider
from tests.openai_server import LlmServer
from tests.samples import a_closed_episode
from tests.summarizer_world import World

EPISODES = tuple(a_closed_episode(ordinal) for ordinal in (1, 2))
MakeProvider = Callable[..., Provider]


@pytest_asyncio.fixture
async def database(make_settings) -> AsyncIterator[MongoDatabase]:
    handle = mongo.connect(make_settings().mongo)
    await mongo.ensure_indexes(handle)
    yield handle
    await handle.client.drop_database(handle.name)
    await mongo.close(handle)


@pytest_asyncio.fixture
async def new_worker(llm_server: LlmServer, database: MongoDatabase) -> AsyncIterator[MakeProvider]:
    """A provider as a worker that starts now has it."""
    made: list[Provider] = []

    def make(**fields: Any) -> Provider:
        given = {"provider": "openai", "base_url": f"{llm_server.url}/v1", "model": llm.MODEL}
        made.append(a_provider(Llm.model_validate({**given, **fields}), replies=MongoReplies(database)))
        return made[-1]

    yield make
    for provider in made:
        await provider.close()


async def summarize(world: World, provider: Provider, *revisions: int) -> list[SummaryCreated]:
    pipeline = world.pipeline(provider=provider)
    return [
        await pipeline.process(episode.model_copy(update={"revision": revision}))
        for revision in revisions
        for episode in EPISODES
    ]


async def test_after_a_rebuild_no_episode_is_sent_to_the_llm_again(
    llm_server: LlmServer, new_worker: MakeProvider
) -> None:
    first = await summarize(World(), new_worker(), 1)
    assert len(llm_server.requests) == len(EPISODES)
    again = await summarize(World(), new_worker(), 1)
    assert len(llm_server.requests) == len(EPISODES)
    for before, after in zip(first, again, strict=True):
        assert after.usage == Usage() != before.usage
        assert after.model_copy(update={"usage": before.usage}) == before


async def test_a_new_revision_of_the_same_messages_is_not_sent_to_the_llm_again(
    llm_server: LlmServer, new_worker: MakeProvider
) -> None:
    world = World()
    await summarize(world, new_worker(), 1)
    second = await summarize(world, new_worker(), 2)
    assert len(llm_server.requests) == len(EPISODES)
    assert [summary.revision for summary in second] == [2, 2]


async def test_only_an_answer_that_could_not_be_used_is_asked_for_again_after_a_rebuild(
    llm_server: LlmServer, new_worker: MakeProvider
) -> None:
    llm_server.script(llm.answers("no JSON"))
    await summarize(World(), new_worker(), 1)
    assert len(llm_server.requests) == len(EPISODES) + 1
    for _ in range(2):
        await summarize(World(), new_worker(), 1)
        assert len(llm_server.requests) == len(EPISODES) + 2


@pytest.mark.parametrize("changed", [{"model": "another-model"}, {"temperature": 0.9}, {"cache_seconds": 0}])
async def test_another_model_is_asked_again_and_so_is_one_whose_answers_are_not_kept(
    llm_server: LlmServer, new_worker: MakeProvider, changed: dict[str, Any]
) -> None:
    await summarize(World(), new_worker(), 1)
    await summarize(World(), new_worker(**changed), 1)
    assert len(llm_server.requests) == 2 * len(EPISODES)


async def test_workers_in_one_process_that_have_the_same_episode_ask_once(
    llm_server: LlmServer, new_worker: MakeProvider
) -> None:
    provider = new_worker()
    llm_server.script(llm.after(0.2, llm.success()))
    await asyncio.gather(*(summarize(World(), provider, 1) for _ in range(3)))
    assert len(llm_server.requests) == len(EPISODES)


async def test_a_lost_cache_costs_calls_and_nothing_else(
    llm_server: LlmServer, new_worker: MakeProvider, database: MongoDatabase
) -> None:
    first = await summarize(World(), new_worker(), 1)
    await database["llm_cache"].drop()
    again = await summarize(World(), new_worker(), 1)
    assert len(llm_server.requests) == 2 * len(EPISODES)
    assert again == first
