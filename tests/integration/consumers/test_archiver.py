"""The archiver on a real broker and the SQLite file."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer
from opentelemetry.trace import NoOpTracer

from afterword.embedded.claims import free_ports
from afterword.operating.dlq import Filters, open_queue
from afterword.operating.topics import ensure_topics
from afterword.schemas import ConversationFlush, MessageCreated
from afterword.schemas.base import message_key
from afterword.schemas.messages import CONVERSATION_FLUSH
from afterword.schemas.records import CE_TYPE
from afterword.streams.archiver.agent import archiver_app
from afterword.streams.errors import StateUnreadable, StoreUnavailable
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.settings import Settings
from afterword.streams.steps import StepRunner
from afterword.streams.stores.messages import ArchivedMessage, MessageArchive, Selection
from afterword.streams.stores.opening import open_stores
from afterword.streams.stores.sqlite import SqliteMessages
from afterword.streams.telemetry.metrics import Metrics
from faust_eos.app import STOP_SECONDS, App, running
from faust_eos.errors import AgentFailed
from faust_eos.health import Readiness
from tests.doubles.stores import MemoryMessages
from tests.e2e.deployment import environment_of
from tests.integration.engine.test_faults import own_broker
from tests.waiting import until

CONVERSATION = "conversation"
SECONDS = 120.0
DRAIN_SECONDS = 2.0


def message(n: int, content: str | None = None, skip: bool = False) -> MessageCreated:
    text = f"text {n}" if content is None else content
    return MessageCreated(
        id=str(n), conversation_id=CONVERSATION, user_id="u", role="user", content=text, skip_summarization=skip
    )


async def send(producer: AIOKafkaProducer, settings: Settings, event: MessageCreated | ConversationFlush) -> Any:
    """Return aiokafka's metadata of the record."""
    headers = [] if isinstance(event, MessageCreated) else [(CE_TYPE, CONVERSATION_FLUSH.encode())]
    topic = settings.kafka.messages_topic
    return await producer.send_and_wait(topic, event.to_json(), key=CONVERSATION.encode(), headers=headers)


@asynccontextmanager
async def archiving(
    settings: Settings,
    archive: MessageArchive | None = None,
    readiness: Readiness | None = None,
    metrics: Metrics | None = None,
) -> AsyncIterator[App]:
    """Run the archiver's app, by default with the configured archive."""
    metrics = metrics or Metrics("archiver", "0")
    steps = StepRunner(readiness or Readiness(), metrics, NoOpTracer())
    async with open_stores(settings) as stores:
        kept, prepare = archive or stores.messages, stores.prepare_database
        async with running(archiver_app(settings, kept, prepare, steps, metrics, NoOpTracer())) as app:
            yield app


@pytest_asyncio.fixture
async def archive(settings: Settings) -> AsyncIterator[MessageArchive]:
    async with open_stores(settings) as stores:
        yield stores.messages


async def archived(archive: MessageArchive) -> dict[str, MessageCreated]:
    return {found.message.id: found.message async for found in archive.newest(Selection(CONVERSATION, None))}


async def committed(settings: Settings) -> int:
    """Return the number of records of `messages` that the archiver has committed."""
    async with open_log(settings.kafka) as log:
        return sum((await log.committed(settings.kafka.group_of("archiver"), settings.kafka.messages_topic)).values())


async def test_every_message_is_archived_and_then_committed(settings, producer, archive):
    for n in range(5):
        await send(producer, settings, message(n))
    async with archiving(settings):
        await until(lambda: is_committed(settings, 5))
        assert set(await archived(archive)) == {"0", "1", "2", "3", "4"}
        await send(producer, settings, message(5))
        await until(lambda: is_committed(settings, 6))
    assert (await archived(archive))["5"].content == "text 5"


async def is_committed(settings: Settings, count: int) -> bool:
    return await committed(settings) == count


class BrokenArchive(MemoryMessages):
    """An archive that refuses until it is repaired."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts = 0
        self.repaired = asyncio.Event()

    async def put_many(self, messages: Sequence[ArchivedMessage], *, repeats_edit: bool = True) -> None:
        self.attempts += 1
        if not self.repaired.is_set():
            raise StoreUnavailable(store="memory", problem="broken")
        await super().put_many(messages, repeats_edit=repeats_edit)


async def test_store_outage_loses_nothing_and_shows_in_readiness(settings, producer):
    archive, health = BrokenArchive(), Readiness()
    async with archiving(settings, archive, health):
        await send(producer, settings, message(1))
        await until(lambda: archive.attempts >= 3)
        assert health.reasons["archive"] == "store_unavailable"
        assert await committed(settings) == 0
        archive.repaired.set()
        await until(lambda: is_committed(settings, 1))
        assert "archive" not in health.reasons
    assert list(archive.messages) == [message_key(CONVERSATION, "1")]


class TrippingArchive(MemoryMessages):
    """An archive that fails unexpectedly on messages that name it."""

    async def put_many(self, messages: Sequence[ArchivedMessage], *, repeats_edit: bool = True) -> None:
        if any("trip" in archived.message.content for archived in messages):
            raise OverflowError("contents of a message")
        await super().put_many(messages, repeats_edit=repeats_edit)


async def test_message_that_fails_in_the_archiver_is_dead_lettered(settings, producer):
    archive, kafka = TrippingArchive(), settings.kafka
    for n in range(9):
        await send(producer, settings, message(n, content="trip" if n == 4 else "fine"))
    async with archiving(settings, archive):
        await until(lambda: is_committed(settings, 9))
    assert archive.messages.keys() == {message_key(CONVERSATION, str(n)) for n in range(9) if n != 4}
    async with open_queue(settings) as queue:
        topic = kafka.dead_letters(kafka.messages_topic)
        [letter] = [found async for found in queue.unresolved(topic, Filters())]
        assert (letter.stage, letter.error_type) == ("archive", "unforeseen")
        assert letter.problem.startswith("OverflowError at afterword.streams.archiver.agent:")
        counts = await queue.count(topic, Filters(), "replayed")
        assert (counts.resolved, counts.skipped.total()) == (0, 1)


class DyingArchive(MemoryMessages):
    """An archive whose writes arrive, while the answers are lost."""

    async def put_many(self, messages: Sequence[ArchivedMessage], *, repeats_edit: bool = True) -> None:
        await super().put_many(messages, repeats_edit=repeats_edit)
        raise StateUnreadable(problem="the process is gone")


async def test_records_written_before_a_crash_are_rewritten_without_effect(settings, producer):
    dying = DyingArchive()
    archive = SqliteMessages(dying.file)
    await send(producer, settings, message(1))
    with pytest.raises(AgentFailed):
        async with archiving(settings, dying) as app, asyncio.timeout(SECONDS):
            await app.wait_until_stopped()
    assert await committed(settings) == 0
    before = dict(dying.messages)
    await send(producer, settings, message(2))
    async with archiving(settings, archive):
        await until(lambda: is_committed(settings, 2))
    assert dying.messages.keys() == {message_key(CONVERSATION, "1"), message_key(CONVERSATION, "2")}
    assert dying.messages[message_key(CONVERSATION, "1")] == before[message_key(CONVERSATION, "1")]


@pytest.mark.nightly
async def test_stop_during_an_outage_ends_in_time_without_commit(settings, producer):
    archive = BrokenArchive()
    await send(producer, settings, message(1))
    hurried = settings.model_copy(update={"drain_seconds": 0.2})
    async with asyncio.timeout(SECONDS):
        async with archiving(hurried, archive):
            await until(lambda: archive.attempts >= 1)
    assert await committed(settings) == 0


async def test_sigterm_commits_the_work_and_exits_0(settings, producer, archive):
    async with worker_process(settings) as worker:
        for n in range(50):
            await send(producer, settings, message(n))
        worker.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            assert await worker.wait() == 0
    assert await committed(settings) == len(await archived(archive))


@pytest.mark.nightly
async def test_unresponsive_broker_does_not_delay_the_exit(settings, tmp_path):
    async with own_broker(tmp_path / "kafka") as kafka:
        there = {"bootstrap_servers": kafka.bootstrap_servers, "request_timeout_seconds": 60.0}
        elsewhere = settings.model_copy(
            update={"kafka": settings.kafka.model_copy(update=there), "drain_seconds": DRAIN_SECONDS}
        )
        await ensure_topics(elsewhere)
        async with worker_process(elsewhere) as worker:
            kafka.process.suspend()
            try:
                worker.send_signal(signal.SIGTERM)
                async with asyncio.timeout(DRAIN_SECONDS + STOP_SECONDS + 15):
                    assert await worker.wait() == 0
            finally:
                kafka.process.resume()


@asynccontextmanager
async def worker_process(settings: Settings) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `afterword worker archiver`, and wait until it is ready."""
    [port] = free_ports(1)
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "afterword.cli", "worker", "archiver"),
        env={**os.environ, **environment_of(settings), "AFTERWORD_HEALTH__PORT": str(port)},
    )
    try:
        await until(lambda: is_ready(port))
        yield worker
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()


async def is_ready(port: int) -> bool:
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                return answer.status == 200
        except aiohttp.ClientConnectionError:
            return False
