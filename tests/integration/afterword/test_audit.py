"""The audit on real topics and stores that were written by hand: clean ones, and ones with a single fault."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from afterword import samples
from afterword.operating import audit
from afterword.operating.topics import ensure_topics
from afterword.schemas import EpisodeClosed
from afterword.streams.kafka.clients import Position, running_producer
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.settings import Settings
from afterword.writing.produce import produce
from faust_eos.transaction import Output
from faust_eos.window import Progress
from tests.offsets import commit_offsets

MESSAGES = len(samples.sample_lines())


@dataclass
class Deployment:
    """Does the workers' steps by hand; a test leaves out a step, or repeats one."""

    settings: Settings
    producer: AIOKafkaProducer
    outgoing: list[Output] = field(default_factory=list)
    rows: dict[str, dict[int, dict[bytes, bytes]]] = field(default_factory=dict)

    async def produce(self, *more: bytes, flush: bool = True) -> None:
        await produce(self.settings, [*samples.sample_lines(), *more], flush=flush)

    async def segment(self) -> None:
        """Run the segmenter's code on the topic, and keep the result for `publish`."""
        kafka = self.settings.kafka
        records = await self.read(kafka.messages_topic)
        self.rows = {"messages": {}, "conversations": {}}
        for partition in sorted({record.partition for record in records}):
            tables = {name: rows.setdefault(partition, {}) for name, rows in self.rows.items()}
            segmenter = Segmenter(
                limits=self.settings.episodes,
                episodes_topic=kafka.episodes_topic,
                dead_letters_topic=kafka.dead_letters(kafka.messages_topic),
                conversations=tables["conversations"],
                messages=tables["messages"],
                count_tokens=len,
            )
            mine = [record for record in records if record.partition == partition]
            self.outgoing += segmenter.process(mine, time.time_ns() // 1_000_000).outgoing

    async def publish(self) -> None:
        """Write episodes, dead letters, state and offsets in one transaction, as the engine does."""
        kafka = self.settings.kafka
        offsets = await self.ends(kafka.messages_topic)
        async with self.producer.transaction():
            for output in self.outgoing:
                await self.producer.send(output.topic, output.value, key=output.key, headers=output.headers)
            for table, partitions in self.rows.items():
                for partition, rows in partitions.items():
                    for key, value in rows.items():
                        await self.producer.send(kafka.changelog(table), value, key=key, partition=partition)
            await self.producer.send_offsets_to_transaction(offsets, kafka.group_of("segmenter"))

    async def abort(self) -> None:
        """Write records and abort, like a worker that died. Nobody may count them."""
        await self.producer.begin_transaction()
        for output in self.outgoing:
            await self.producer.send(output.topic, output.value, key=output.key, headers=output.headers)
        await self.producer.flush()
        await self.producer.abort_transaction()

    def episodes(self) -> list[EpisodeClosed]:
        topic = self.settings.kafka.episodes_topic
        return [EpisodeClosed.model_validate_json(o.value) for o in self.outgoing if o.topic == topic]

    async def read(self, topic: str) -> list[ConsumerRecord]:
        found: list[ConsumerRecord] = []
        async with open_log(self.settings.kafka) as log:
            await log.read(topic, found.append)
        return sorted(found, key=lambda r: (r.partition, r.offset))

    async def ends(self, topic: str) -> dict[TopicPartition, int]:
        async with open_log(self.settings.kafka) as log:
            return await log.ends(topic)


@pytest_asyncio.fixture
async def deployment(make_settings: Callable[..., Settings], unique: Callable[[str], str]) -> AsyncIterator[Deployment]:
    settings = make_settings(kafka={"partitions": 2})
    await ensure_topics(settings)
    async with transactional(settings, unique("transaction")) as producer:
        yield Deployment(settings, producer)


@asynccontextmanager
async def transactional(settings: Settings, name: str) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka.bootstrap_servers, transactional_id=name)
    await producer.start()
    yield producer
    await producer.stop()


async def test_lost_message_is_found(deployment):
    await deployment.produce()
    await deployment.segment()
    lost = deployment.episodes()[-1]
    deployment.outgoing.pop()
    await deployment.publish()
    report = await audit.run(deployment.settings)
    assert report.messages["lost"] == lost.message_count
    assert lost.conversation_id in report.findings["lost"].examples[0]


@pytest.mark.nightly
async def test_aborted_transaction_does_not_count(deployment):
    await deployment.produce()
    await deployment.segment()
    await deployment.abort()
    await deployment.publish()
    report = await audit.run(deployment.settings)
    assert report.clean, report.findings


@pytest.mark.nightly
async def test_records_finished_beyond_the_group_offset_are_not_left(deployment):
    settings = deployment.settings
    source = TopicPartition(settings.kafka.dead_letters(settings.kafka.episodes_topic), 0)
    async with running_producer(settings.kafka) as producer:
        for number in range(4):
            await producer.send_and_wait(source.topic, b"%d" % number, partition=0)
    finished = Progress(0, frozenset({1, 3}))
    done = OffsetAndMetadata(finished.offset, finished.metadata())
    await commit_offsets(settings.kafka, "workers", {source: done})
    async with open_log(settings.kafka) as log:
        ends = await log.ends(source.topic)
        assert [record.value async for record in log.unread("workers", source.topic, ends)] == [b"0", b"2"]
        assert await log.left("workers", source.topic, ends) == 2
        records = {Position(0, offset) for offset in range(4)}
        assert await log.unfinished("workers", source.topic, records) == {Position(0, 0), Position(0, 2)}
