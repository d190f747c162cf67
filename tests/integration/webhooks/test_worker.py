"""The webhooks worker as a process: events on Kafka, and endpoints that accept or reject them."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from aiohttp import web

from afterword.operating.dlq import DeadLetterQueue, Filters, open_queue
from afterword.schemas import SummaryDeleted
from afterword.schemas.dead_letters import DeadLetter
from afterword.schemas.records import cloud_event
from afterword.schemas.summaries import SUMMARY_CREATED, SUMMARY_DELETED
from afterword.streams.kafka.clients import running_producer
from afterword.streams.settings import Settings
from tests.doubles.receiver import SECRET, Receiver, receiving
from tests.e2e.deployment import Deployment, deployed
from tests.samples import a_summary
from tests.waiting import until

CONVERSATIONS = [f"c{number}" for number in range(6)]
EVENTS = 4
ROLE = "webhooks"
STUCK = "c3"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def endpoint(receiver: Receiver, **fields: Any) -> dict[str, Any]:
    return {"url": receiver.url, "secret": SECRET, **fields}


def deleted(conversation: str) -> SummaryDeleted:
    return SummaryDeleted(
        event_id=f"{conversation}:1:2",
        episode_id=f"{conversation}:1",
        revision=2,
        reason="deleted",
        conversation_id=conversation,
        ordinal=1,
        deleted_at=NOW,
    )


async def announce(settings: Settings, first: int, last: int, conversations: Sequence[str] = CONVERSATIONS) -> None:
    async with running_producer(settings.kafka) as producer:
        for number in range(first, last + 1):
            for conversation in conversations:
                made = a_summary(number, conversation)
                headers = cloud_event(SUMMARY_CREATED, made.event_id, "test", NOW)
                topic = settings.kafka.summaries_topic
                await producer.send_and_wait(topic, made.to_json(), key=conversation.encode(), headers=headers)


async def delete(settings: Settings, conversation: str) -> None:
    made = deleted(conversation)
    headers = cloud_event(SUMMARY_DELETED, made.event_id, "test", NOW)
    async with running_producer(settings.kafka) as producer:
        topic = settings.kafka.deletions_topic
        await producer.send_and_wait(topic, made.to_json(), key=conversation.encode(), headers=headers)


def ids(conversation: str, first: int = 1, last: int = EVENTS) -> list[str]:
    return [f"{conversation}:{number}:1" for number in range(first, last + 1)]


def created(receiver: Receiver, conversation: str) -> list[str]:
    return [one for one in receiver.ids(conversation) if one.endswith(":1")]


def has_all(receiver: Receiver, last: int = EVENTS) -> bool:
    return all(created(receiver, conversation) == ids(conversation, 1, last) for conversation in CONVERSATIONS)


async def shown(deployment: Deployment, text: str) -> None:
    """Wait until the metrics of the worker started last contain these words."""
    lines = [orjson.loads(line) for line in deployment.logs(ROLE).splitlines() if line.startswith("{")]
    port = [line["port"] for line in lines if line["event"] == "health_server_started"][-1]
    async with asyncio.timeout(120), httpx.AsyncClient() as client:
        while text not in (await client.get(f"http://127.0.0.1:{port}/metrics")).text:  # noqa: ASYNC110 – a process
            await asyncio.sleep(0.2)


async def dead_letters(queue: DeadLetterQueue, topic: str, count: int) -> list[DeadLetter]:
    """Wait for this many dead letters."""
    async with asyncio.timeout(180):
        while True:
            found = [one async for one in queue.unresolved(topic, Filters())]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.2)


async def test_every_endpoint_gets_every_event_despite_dead_neighbours(
    make_settings: Callable[..., Settings], tmp_path: Path, closed_port: int
) -> None:
    failing = {STUCK}

    async def stuck(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.02)
        return web.Response(status=500 if message["data"]["conversation_id"] in failing else 200)

    async with receiving() as good, receiving(stuck) as partial:
        dead = {"url": f"http://127.0.0.1:{closed_port}/", "secret": SECRET}
        endpoints = {
            "good": endpoint(good),
            "partial": endpoint(partial),
            "dead": dead,
        }
        settings = make_settings(
            kafka={"partitions": 2, "session_timeout_seconds": 6},
            webhooks={
                "endpoints": endpoints,
                "private_hosts": "127.0.0.1",
            },
            drain_seconds=30,
        )
        async with deployed(settings, tmp_path) as deployment:
            deployment.start(ROLE)
            await announce(settings, 1, 2)
            await until(lambda: len(good.ids()) + len(partial.ids()) > 15)
            deployment.kill(ROLE)
            await announce(settings, 3, EVENTS)
            await delete(settings, "c1")
            deployment.start(ROLE)
            await until(lambda: has_all(good))
            others = [conversation for conversation in CONVERSATIONS if conversation != STUCK]
            await until(lambda: all(created(partial, one) == ids(one) for one in others))
            assert created(partial, STUCK) == []
            failing.clear()
            await until(lambda: has_all(partial))
            await until(lambda: "c1:1:2" in good.ids())
            assert {one.event["type"] for one in good.taken} == {SUMMARY_CREATED, SUMMARY_DELETED}
            await shown(deployment, 'afterword_webhooks_total{endpoint="dead",outcome="connection"}')
            await shown(deployment, 'afterword_webhooks_total{endpoint="dead",outcome="delivered"} 0.0')
            await shown(deployment, 'afterword_consumer_lag_seconds{partition="0",role="webhooks:dead",')
            began = asyncio.get_running_loop().time()
            assert await deployment.stop(ROLE) == 0
            # the worker does not wait for events that await a retry
            assert asyncio.get_running_loop().time() - began < settings.drain_seconds


@pytest.mark.nightly
async def test_overdue_event_is_dead_lettered_and_replayed(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    status = 503

    async def down(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=status)

    async with receiving() as good, receiving(down) as bad:
        settings = make_settings(
            kafka={"partitions": 1, "session_timeout_seconds": 6},
            webhooks={
                "endpoints": {"good": endpoint(good), "bad": endpoint(bad)},
                "private_hosts": "127.0.0.1",
                "retry_seconds": 1,
            },
            drain_seconds=10,
        )
        topic = settings.kafka.undelivered_topic
        async with deployed(settings, tmp_path) as deployment, open_queue(settings) as queue:
            deployment.start(ROLE)
            await announce(settings, 1, 2)
            count = 2 * len(CONVERSATIONS)
            letters = await dead_letters(queue, topic, count)
            assert {one.error_type for one in letters} == {"delivery_failed"}
            assert {one.problem for one in letters} == {"bad: it answers 503"}
            status = 200
            assert (await queue.resolve(topic, Filters(), "replayed")).resolved == count
            await until(lambda: has_all(bad, 2) and has_all(good, 2))
            assert len(good.taken) == count
            assert await deployment.stop(ROLE) == 0


async def test_new_endpoint_may_begin_with_events_from_a_time(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    async with receiving() as everything, receiving() as later:
        kafka = {"partitions": 1, "session_timeout_seconds": 6}
        settings = make_settings(kafka=kafka)
        async with deployed(settings, tmp_path):
            await announce(settings, 1, 2, ["c1"])
        since = datetime.now(UTC)
        webhooks = {
            "endpoints": {"everything": endpoint(everything), "later": endpoint(later, since=since.isoformat())},
            "private_hosts": "127.0.0.1",
        }
        settings = make_settings(kafka=kafka, webhooks=webhooks, drain_seconds=10)
        async with deployed(settings, tmp_path) as deployment:
            deployment.start(ROLE)
            await announce(settings, 3, 3, ["c1"])
            await until(lambda: everything.ids() == ["c1:1:1", "c1:2:1", "c1:3:1"] and later.ids() == ["c1:3:1"])
            assert await deployment.stop(ROLE) == 0
