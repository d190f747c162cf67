"""The same fingerprint, prompt and model are never sent to an LLM twice, also across revisions and rebuilds."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry.trace import NoOpTracer

from afterword.schemas import SummaryCreated, Usage
from afterword.streams.settings import Llm, Settings
from afterword.streams.stores import mongo
from afterword.streams.stores.mongo import MongoDatabase, MongoReplies
from afterword.streams.summarizer.providers import Provider
from afterword.streams.summarizer.summarizer import make_summarizer
from afterword.streams.summarizer.summary import SummaryRequest
from tests import openai_server as llm
from tests.doubles.llm import a_provider, unread
from tests.doubles.stores import MemoryBudgets
from tests.openai_server import LlmServer
from tests.samples import a_closed_episode
from tests.summarizer_world import World
from tests.unit.summarizer.conversations import an_episode_of

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
        assert before.usage.seconds > 0
        assert after.model_copy(update={"usage": before.usage}) == before


@pytest.mark.nightly
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


@pytest.mark.nightly
@pytest.mark.parametrize("changed", [{"model": "another-model"}, {"temperature": 0.9}, {"cache_seconds": 0}])
async def test_another_model_is_asked_again_and_so_is_one_whose_answers_are_not_kept(
    llm_server: LlmServer, new_worker: MakeProvider, changed: dict[str, Any]
) -> None:
    await summarize(World(), new_worker(), 1)
    await summarize(World(), new_worker(**changed), 1)
    assert len(llm_server.requests) == 2 * len(EPISODES)


@pytest.mark.nightly
async def test_workers_in_one_process_that_have_the_same_episode_ask_once(
    llm_server: LlmServer, new_worker: MakeProvider
) -> None:
    provider = new_worker()
    llm_server.script(llm.after(0.2, llm.success()))
    await asyncio.gather(*(summarize(World(), provider, 1) for _ in range(3)))
    assert len(llm_server.requests) == len(EPISODES)


def without_seconds(summary: SummaryCreated) -> SummaryCreated:
    return summary.model_copy(update={"usage": summary.usage.model_copy(update={"seconds": 0.0})})


@pytest.mark.nightly
async def test_a_lost_cache_costs_calls_and_nothing_else(
    llm_server: LlmServer, new_worker: MakeProvider, database: MongoDatabase
) -> None:
    first = await summarize(World(), new_worker(), 1)
    await database["llm_cache"].drop()
    again = await summarize(World(), new_worker(), 1)
    assert len(llm_server.requests) == 2 * len(EPISODES)
    assert list(map(without_seconds, again)) == list(map(without_seconds, first))


@pytest.mark.nightly
async def test_the_llm_and_the_cache_get_placeholders_and_the_summary_has_the_originals(
    llm_server: LlmServer, database: MongoDatabase
) -> None:
    """As a worker makes it from its settings."""
    needle = "ann.needle@example.com"
    llm_server.script(llm.success(llm.TEXTS | {"long_summary": "The user can be reached at [EMAIL_1]."}))
    given = {"provider": "openai", "base_url": f"{llm_server.url}/v1", "model": llm.MODEL}
    settings = Settings.model_validate(
        {"llm": given, "redaction": {"where": "llm"}, "quality": {"enabled": False}, "retry": {"attempts": 0}}
    )
    summarizer = make_summarizer(settings, MemoryBudgets(), MongoReplies(database), unread(), NoOpTracer())
    episode = an_episode_of(("user", f"You can reach me at {needle}."), ("assistant", "Thank you."))
    summary = await summarizer.summarize(SummaryRequest(episode, f"It is {needle}.", 400))
    await summarizer.close()
    assert summary.long_summary == f"The user can be reached at {needle}."
    assert ["[EMAIL_1]" in request.prompt for request in llm_server.requests] == [True]
    assert needle not in repr([request.body for request in llm_server.requests])
    kept = [repr(document) async for document in database["llm_cache"].find()]
    assert ["[EMAIL_1]" in document for document in kept] == [True]
    assert not any(needle in document for document in kept)
