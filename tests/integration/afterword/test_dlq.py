"""Dead letters on a real broker: replayed once, discarded, or left alone."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer, ConsumerRecord
from aiokafka.errors import KafkaError, ProducerFenced

from afterword.operating.dlq import DeadLetterQueue, Filters, ReplayOverlaps, open_queue
from afterword.operating.topics import ensure_topics
from afterword.schemas.dead_letters import DeadLetter, dead_letter
from afterword.streams.errors import BrokerUnavailable
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.settings import Settings
from tests.conftest import MakeSettings


@dataclass
class Original:
    """A record that was rejected."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


@dataclass
class World:
    settings: Settings
    producer: AIOKafkaProducer
    queue: DeadLetterQueue

    @property
    def topic(self) -> str:
        return self.settings.kafka.dead_letters(self.settings.kafka.messages_topic)

    async def add(self, *numbers: int, error_type: str = "invalid_json") -> None:
        """Add a dead letter for each number, on two partitions."""
        for number in numbers:
            original = Original(
                self.settings.kafka.messages_topic,
                number % 2,
                number,
                b"c%d" % number,
                b"\xff{%d" % number,
                [("trace", b"%d" % number)],
            )
            key, value, headers = dead_letter(
                original, stage="segmenter", error_type=error_type, message="no", now_ms=time.time_ns() // 1_000_000
            )
            await self.producer.send_and_wait(self.topic, value, key=key, headers=headers, partition=number % 2)

    async def open(self, filters: Filters | None = None) -> list[DeadLetter]:
        async with aclosing(self.queue.unresolved(self.topic, filters or Filters())) as letters:
            return [found async for found in letters]

    async def sent_again(self) -> list[ConsumerRecord]:
        async with open_log(self.settings.kafka) as log:
            return [record async for record in log.records(self.settings.kafka.messages_topic)]


@pytest_asyncio.fixture
async def world(make_settings: MakeSettings) -> AsyncIterator[World]:
    settings = make_settings(kafka={"partitions": 2})
    await ensure_topics(settings)
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka.bootstrap_servers)
    await producer.start()
    try:
        async with open_queue(settings) as queue:
            yield World(settings, producer, queue)
    finally:
        await producer.stop()


async def test_replayed_dead_letter_keeps_key_bytes_headers_and_partition(world: World) -> None:
    await world.add(0, 1)
    counts = await world.queue.resolve(world.topic, Filters(), "replayed")
    assert (counts.by_type.total(), counts.resolved) == (2, 2)
    again = await world.queue.resolve(world.topic, Filters(), "replayed")
    assert again.by_type.total() == 0
    sent = sorted(await world.sent_again(), key=lambda record: record.partition)
    assert [(r.partition, r.key, r.value) for r in sent] == [(0, b"c0", b"\xff{0"), (1, b"c1", b"\xff{1")]
    assert [list(r.headers) for r in sent] == [[("trace", b"0")], [("trace", b"1")]]
    assert await world.open() == []


async def test_discarded_dead_letter_is_neither_sent_nor_listed_again(world: World) -> None:
    await world.add(0, 1, 2)
    counts = await world.queue.resolve(world.topic, Filters(conversation_id="c1"), "discarded")
    assert counts.resolved == 1
    assert {found.key for found in await world.open()} == {b"c0", b"c2"}
    assert await world.sent_again() == []


@pytest.mark.nightly
async def test_foreign_record_cannot_be_replayed_but_discarded(world: World) -> None:
    await world.producer.send_and_wait(world.topic, b"hello", key=b"k")
    counts = await world.queue.resolve(world.topic, Filters(), "replayed")
    assert (counts.by_type.total(), counts.resolved, counts.skipped.total()) == (1, 0, 1)
    assert (await world.queue.resolve(world.topic, Filters(), "discarded")).resolved == 1
    assert await world.open() == []


@pytest.mark.nightly
async def test_replay_larger_than_one_transaction_sends_each_letter_once(world: World) -> None:
    await asyncio.gather(*[world.add(number) for number in range(450)])
    told: list[tuple[str, int]] = []
    counts = await world.queue.resolve(world.topic, Filters(), "replayed", lambda *news: told.append(news))
    assert counts.resolved == 450
    assert told == [(world.topic, 200), (world.topic, 400)]
    assert len({record.key for record in await world.sent_again()}) == len(await world.sent_again()) == 450


@pytest.mark.parametrize("_", range(10))  # aiokafka tells it in several ways, some of them rarely
async def test_two_concurrent_replays_send_each_record_once(world: World, _: int) -> None:
    await asyncio.gather(*[world.add(number) for number in range(300)])
    both = [world.queue.resolve(world.topic, Filters(), "replayed") for _ in range(2)]
    ended = await asyncio.gather(*both, return_exceptions=True)
    assert [end for end in ended if isinstance(end, BaseException) and not isinstance(end, ReplayOverlaps)] == []
    await world.queue.resolve(world.topic, Filters(), "replayed")
    assert sorted(record.key for record in await world.sent_again()) == sorted(b"c%d" % n for n in range(300))


async def test_replay_that_died_in_its_transaction_sent_nothing(world: World) -> None:
    await world.add(0)
    kafka = world.settings.kafka
    died = AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=f"{kafka.group_of('dlq')}-{world.topic}"
    )
    await died.start()
    await died.begin_transaction()
    await died.send_and_wait(world.settings.kafka.messages_topic, b"half", partition=0)
    await world.queue.resolve(world.topic, Filters(), "replayed")
    assert [record.key for record in await world.sent_again()] == [b"c0"]
    with suppress(ProducerFenced):
        await died.stop()


async def test_broker_failing_during_a_read_is_named(world: World) -> None:
    servers = world.settings.kafka.bootstrap_servers
    with pytest.raises(BrokerUnavailable, match=f"{servers}.*gone"):
        async with open_queue(world.settings):
            raise KafkaError("gone")
