"""An LLM that is unavailable for a while: what the deployment reports, and what it repairs by itself afterwards."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest
import pytest_asyncio
from aiohttp import web

from afterword import SummarySubscriber
from afterword.embedded.claims import free_ports
from afterword.schemas import SummaryCreated
from afterword.streams.kafka.clients import running_consumer, running_producer
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import find_conversation, find_episode
from afterword.streams.stores.opening import open_stores
from tests import openai_server as llm
from tests.e2e.deployment import Deployment, deployed
from tests.openai_server import LlmServer
from tests.waiting import until

SECONDS = 180
CONVERSATIONS = ("one", "two", "three")
TOLD = "I want to cancel order 4711 and wait three days for the refund."


@pytest.fixture
def settings(make_settings: Callable[..., Settings], llm_server: LlmServer) -> Settings:
    return make_settings(
        kafka={"partitions": 2, "session_timeout_seconds": 6},
        llm={"provider": "openai", "model": llm.MODEL, "base_url": f"{llm_server.url}/v1", "attempts": 1},
        retry={"first_delay_seconds": 0.5, "longest_delay_seconds": 1},
        drain_seconds=5,
    )


@pytest_asyncio.fixture
async def deployment(settings: Settings, tmp_path) -> AsyncIterator[Deployment]:
    async with deployed(settings, tmp_path) as ready:
        for role in ALWAYS_RUN:
            ready.start(role)
        yield ready


def lines() -> list[bytes]:
    """Each conversation is short enough for one episode, and long enough for the texts of the LLM."""
    return [
        orjson.dumps({"id": f"m{n}", "conversation_id": name, "user_id": "u1", "role": role, "content": content})
        for name in CONVERSATIONS
        for n, (role, content) in enumerate(
            (("user", TOLD), ("assistant", "I cancelled it, the refund is on its way."))
        )
    ]


@pytest_asyncio.fixture
async def events(settings: Settings, deployment: Deployment) -> AsyncIterator[SummarySubscriber]:
    kafka = settings.kafka
    topic, group = kafka.summaries_topic, f"{kafka.summaries_topic}-test"
    async with SummarySubscriber(bootstrap_servers=kafka.bootstrap_servers, group_id=group, topic=topic) as subscriber:
        yield subscriber


async def next_of_each(events: SummarySubscriber) -> dict[str, SummaryCreated]:
    """Return the next event of each conversation."""
    async with asyncio.timeout(SECONDS):
        found = [await anext(events) for _ in CONVERSATIONS]
    return {event.conversation_id: event for event in found}


async def stored(settings: Settings) -> dict[str, Any]:
    """Return the episode and title of each conversation."""
    found = {}
    async with open_stores(settings) as stores:
        for name in CONVERSATIONS:
            episode = await find_episode(stores.episodes, f"{name}:1")
            known = await find_conversation(stores.episodes, name)
            assert episode
            assert known
            assert (known.episode_count, known.message_count) == (1, 2)
            found[name] = (episode.summary, known.title)
    return found


def told(events: dict[str, SummaryCreated]) -> dict[str, Any]:
    return {name: (event, event.title) for name, event in events.items()}


async def test_fallbacks_are_announced_and_replaced_after_an_outage(settings, deployment, llm_server, events):
    llm_server.down = True
    await deployment.produce(lines())
    first = await next_of_each(events)
    assert {event.quality.reason for event in first.values()} == {"provider_unavailable"}
    assert await stored(settings) == told(first)
    await send_what_is_no_episode(settings)
    llm_server.down = False
    second = await next_of_each(events)
    for name, event in second.items():
        assert (event.event_id, event.revision) == (f"{name}:1:2", 2)
        assert (event.quality.source, event.title) == ("llm", llm.TEXTS["title"])
    assert await stored(settings) == told(second)
    report = await deployment.audit()
    assert report.clean, list(report.lines())
    counts = report.summaries
    assert (counts["announced"], counts["stored"], counts["indexed"], counts["superseded"]) == (3, 3, 3, 3)
    assert await dead_letters_of_episodes(settings, 2) == 2
    assert await deployment.stop("summarizer") == 0
    assert await points(settings) == dict.fromkeys(CONVERSATIONS, 2)


async def test_refused_prompts_are_retried_with_another_model(settings, deployment, llm_server, events):
    async def filters(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        passes = asked["model"] == "another" or "Answer with yes." in str(asked["messages"])
        refuses = llm.fails(400, {"code": "content_filter", "message": "filtered"})
        return await (llm.success() if passes else refuses)(request)

    async def given_up() -> bool:
        async with open_stores(settings) as stores:
            found = [await find_episode(stores.episodes, f"{name}:1") for name in CONVERSATIONS]
        return all(one is not None and one.due_at is None for one in found)

    llm_server.usual = filters
    await deployment.produce(lines())
    first = await next_of_each(events)
    assert {event.quality.reason for event in first.values()} == {"prompt_refused"}
    await until(given_up, seconds=SECONDS)
    await deployment.stop("summarizer")
    another = settings.llm.model_copy(update={"model": "another"})
    deployment.settings = settings.model_copy(update={"llm": another})
    deployment.start("summarizer")
    second = await next_of_each(events)
    assert {(event.revision, event.quality.source, event.model) for event in second.values()} == {(2, "llm", "another")}


async def send_what_is_no_episode(settings: Settings) -> None:
    """Send a broken record to every partition of the topic of episodes."""
    async with running_producer(settings.kafka) as producer:
        for partition in range(settings.kafka.partitions):
            await producer.send_and_wait(settings.kafka.episodes_topic, b"{", key=b"one", partition=partition)


async def dead_letters_of_episodes(settings: Settings, count: int) -> int:
    topic = settings.kafka.dead_letters(settings.kafka.episodes_topic)
    async with (
        asyncio.timeout(SECONDS),
        running_consumer(settings.kafka, topic, auto_offset_reset="earliest") as reader,
    ):
        letters = [await reader.getone() for _ in range(count)]
    sources = [dict(letter.headers)["__afterword.errors.topic"].decode() for letter in letters]
    return sources.count(settings.kafka.episodes_topic)


async def points(settings: Settings) -> dict[str, int]:
    """Return the revision of each conversation's point."""
    async with open_stores(settings) as stores:
        found = await stores.index.revisions([f"{name}:1" for name in CONVERSATIONS])
    return {episode_id.removesuffix(":1"): revision for episode_id, revision in found.items()}


async def test_segmenter_works_and_stops_beside_roles_without_their_database(
    make_settings: Callable[..., Settings], tmp_path
) -> None:
    [port] = free_ports(1)
    mongo = {"uri": f"mongodb://127.0.0.1:{port}/?serverSelectionTimeoutMS=200"}
    settings = make_settings(sqlite={"path": None}, mongo=mongo, kafka={"partitions": 1}, drain_seconds=1)
    async with deployed(settings, tmp_path) as deployment:
        deployment.start("all")
        await deployment.produce(lines())
        await until(lambda: '"stage": "indexes"' in deployment.logs("all"))
        assert len(await deployment.episodes()) == len(CONVERSATIONS)
        assert await deployment.stop("all") == 0
