"""Ingest with a real broker: the outcome of records, and when it waits."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest_asyncio
from aiokafka import ConsumerRecord
from aiokafka.admin import NewPartitions, NewTopic

from afterword.local.dev import start_worker
from afterword.operating.dlq import Filters, open_queue
from afterword.operating.topics import ensure_topics
from afterword.schemas import MessageCreated, decode_input
from afterword.streams.app import Worker
from afterword.streams.ingest.agent import start
from afterword.streams.ingest.sources import require_sources
from afterword.streams.kafka.clients import admin_client, running_consumer, running_producer
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.settings import Settings
from afterword.streams.telemetry.metrics import Metrics
from afterword.streams.telemetry.tracing import tracer_from
from faust_eos.app import PARTITIONS, running
from faust_eos.health import Readiness
from tests.e2e.deployment import environment_of
from tests.schema_registry import Registry, framed
from tests.unit.streams.ingest.records import FIELDS
from tests.waiting import until

SCHEMA = {
    "type": "record",
    "name": "Chat",
    "fields": [{"name": name, "type": "string"} for name in ("id", "thread", "user", "role", "text")],
}
Write = Callable[..., Awaitable[Settings]]


@pytest_asyncio.fixture
async def write(make_settings: Callable[..., Settings], unique: Callable[[str], str], tmp_path: Path) -> Write:
    """Write a file of one source of the topic `chat…`, make the topics, and return the settings."""

    async def made(above: str = "", **sections: Any) -> Settings:
        topic, file = unique("chat"), tmp_path / "afterword.toml"
        file.write_text(f'[[sources]]\ntopics = ["{topic}"]\n{above}\n[sources.map]\n{FIELDS}')
        kafka = {"partitions": 2, "session_timeout_seconds": 6}
        settings = make_settings(kafka=kafka, drain_seconds=10, ingest={"file": file, "bulk_lag": 5}, **sections)
        async with admin_client(settings.kafka) as admin:
            await admin.create_topics([NewTopic(topic, 2, 1)])
        assert all(report.fine for report in await ensure_topics(settings))
        return settings

    return made


def topic_of(settings: Settings) -> str:
    return require_sources(settings)[0].topics[0]


def chat(n: int, **changed: Any) -> dict[str, Any]:
    return {"id": f"m{n}", "thread": f"c{n % 3}", "user": "u", "role": "user", "text": f"text {n}", **changed}


async def send(settings: Settings, values: Sequence[Any], **options: Any) -> None:
    """Send a value as JSON, or bytes unchanged."""
    async with running_producer(settings.kafka) as producer:
        for value in values:
            data = value if isinstance(value, bytes) else orjson.dumps(value)
            await producer.send_and_wait(topic_of(settings), data, **options)


@asynccontextmanager
async def ingesting(settings: Settings, readiness: Readiness | None = None) -> AsyncIterator[Any]:
    """Run the worker's app."""
    async with AsyncExitStack() as closing:
        metrics, tracer = Metrics("ingest", "0"), await closing.enter_async_context(tracer_from({}, "ingest", "0"))
        apps = await start(Worker(settings, readiness or Readiness(PARTITIONS), metrics, tracer, closing, []))
        [app] = apps.values()
        yield await closing.enter_async_context(running(app))


async def is_done(settings: Settings) -> bool:
    """Return whether everything of the source is committed."""
    async with open_log(settings.kafka) as log:
        topic = topic_of(settings)
        ends = await log.ends(topic)
        return await log.left(settings.kafka.group_of("ingest"), topic, ends) == 0


async def records_in(settings: Settings, topic: str) -> list[ConsumerRecord]:
    async with open_log(settings.kafka) as log:
        return [record async for record in log.records(topic)]


async def messages(settings: Settings) -> list[MessageCreated]:
    found = []
    for record in await records_in(settings, settings.kafka.messages_topic):
        event = decode_input(record.key, record.value, record.headers, record.timestamp)
        assert isinstance(event, MessageCreated)
        found.append(event)
    return found


async def test_each_record_becomes_a_message_or_dead_letter(write: Write) -> None:
    settings = await write()
    topic = topic_of(settings)
    bad = [b"{", orjson.dumps(chat(5, role="clerk")), b"\xff" * 50]
    await send(settings, [*map(chat, range(20)), *bad, chat(20), chat(21)])
    async with ingesting(settings):
        await until(lambda: is_done(settings))
    found = await messages(settings)
    assert sorted(one.id for one in found) == sorted(f"m{n}" for n in range(22))
    letters = await records_in(settings, settings.kafka.dead_letters(topic))
    assert sorted(record.value for record in letters) == sorted(bad)
    async with open_queue(settings) as queue:
        problems = [one async for one in queue.unresolved(settings.kafka.dead_letters(topic), Filters(stage="ingest"))]
    assert sorted(one.error_type for one in problems) == ["invalid_json", "invalid_json", "unmapped"]
    assert {one.origin.topic for one in problems if one.origin} == {topic}
    assert any("map.role = value.role" in one.problem for one in problems)


async def test_replayed_dead_letter_follows_the_mended_mapping(
    write: Write,
) -> None:
    settings = await write()
    topic, headers = topic_of(settings), [("tenant", b"acme"), ("traceparent", b"t")]
    await send(settings, [chat(1, role="clerk")], key=b"customer-7", headers=headers, partition=1)
    async with ingesting(settings):
        await until(lambda: is_done(settings))
    file = settings.ingest.file
    file.write_text(
        file.read_text().replace('"value.role"', '{ path = "value.role", values = { clerk = "assistant" } }')
    )
    async with open_queue(settings) as queue:
        [letter] = [one async for one in queue.unresolved(settings.kafka.dead_letters(topic), Filters())]
        assert (letter.key, letter.conversation_id) == (b"customer-7", None)
        assert (await queue.resolve(letter.topic, Filters(), "replayed")).resolved == 1
    first, again = await records_in(settings, topic)
    assert (again.partition, again.key, again.value, list(again.headers)) == (1, first.key, first.value, headers)
    async with ingesting(settings):
        await until(lambda: is_done(settings))
    [found] = await messages(settings)
    assert (found.id, found.role) == ("m1", "assistant")


async def test_mapping_that_always_fails_ends_the_worker_uncommitted(write: Write, tmp_path: Path) -> None:
    settings = await write()
    await send(settings, [chat(n, text=None) for n in range(250)])
    worker = start_worker("ingest", tmp_path, environment_of(settings))
    await until(lambda: not worker.running)
    worker.kill()  # reaps it
    last = worker.log.read_text().splitlines()[-1]
    assert last.startswith("afterword: source 1 cannot be mapped: all of its first 100 records failed, the last one")
    assert "map.content = value.text: finds nothing" in last
    assert worker.returncode == 1
    assert await messages(settings) == []
    assert await records_in(settings, settings.kafka.dead_letters(topic_of(settings))) == []


async def test_absent_registry_pauses_the_source_and_rejects_nothing(write: Write) -> None:
    async with Registry(user="ingest:secret") as registry:
        number = registry.add(SCHEMA)
        account = {"url": registry.url, "username": "ingest", "password": "secret"}
        settings = await write('format = "avro"', registry=account)
        await send(settings, [framed(number, SCHEMA, chat(n)) for n in range(10)])
        registry.is_away = True
        readiness = Readiness(PARTITIONS)
        async with ingesting(settings, readiness):
            await until(lambda: len(registry.asked) > 2)
            assert readiness.reasons["registry"] == "registry_unavailable"
            assert await messages(settings) == []
            registry.is_away = False
            await until(lambda: is_done(settings))
            assert "registry" not in readiness.reasons
    assert len(await messages(settings)) == 10
    assert await records_in(settings, settings.kafka.dead_letters(topic_of(settings))) == []


async def test_bulk_records_wait_until_the_segmenter_catches_up(write: Write) -> None:
    settings = await write("bulk = true")
    await send(settings, [chat(n) for n in range(40)])
    async with ingesting(settings):
        await until(lambda: are_there(settings, 5))
        await asyncio.sleep(1.5)  # nothing reads them, so no more are sent
        assert len(await messages(settings)) <= 10
        async with running_consumer(
            settings.kafka,
            settings.kafka.messages_topic,
            group_id=settings.kafka.group_of("segmenter"),
            auto_offset_reset="earliest",
        ) as segmenter:

            async def all_read() -> bool:
                await segmenter.getmany(timeout_ms=50)
                await segmenter.commit()
                return await is_done(settings)

            await until(all_read)
    assert sorted(one.id for one in await messages(settings)) == sorted(f"m{n}" for n in range(40))


async def are_there(settings: Settings, least: int) -> bool:
    return len(await messages(settings)) >= least


async def test_source_that_gets_more_partitions_is_read_on(write: Write) -> None:
    settings = await write()
    await send(settings, [chat(n) for n in range(10)])
    async with ingesting(settings):
        await until(lambda: is_done(settings))
    async with admin_client(settings.kafka) as admin:
        await admin.create_partitions({topic_of(settings): NewPartitions(4)})
    await send(settings, [chat(n) for n in range(10, 30)])
    async with ingesting(settings):
        await until(lambda: is_done(settings))
        await until(lambda: are_there(settings, 30))
    assert len(await messages(settings)) == 30
