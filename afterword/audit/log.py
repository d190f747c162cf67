"""Reading whole topics and groups' offsets."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError, NotCoordinatorForGroupError

from afterword.streams.errors import AfterwordError
from afterword.streams.kafka import admin_client, client_options, start_client
from afterword.streams.settings import Kafka

Take = Callable[[ConsumerRecord], None]

POLL_MILLISECONDS = 500
RETRY_SECONDS = 0.1
STALLED_SECONDS = 60.0
"""Longer than a transaction of ours may stay open: whoever waits behind one longer waits for somebody else's."""
COORDINATOR_SECONDS = 20.0
"""A new cluster makes the topic of the offsets when it is first asked for one."""


class TopicStalled(AfterwordError):
    """topic {topic} cannot be read to its end: a transaction is open on it, or a partition has no leader"""


class Log:
    """The topics of one cluster, each read from its first record to where it ended when the reading began."""

    def __init__(self, kafka: Kafka, admin: AIOKafkaAdminClient) -> None:
        self._kafka = kafka
        self._admin = admin

    async def topics(self) -> set[str]:
        return set(await self._admin.list_topics())

    async def committed(self, group_id: str, topic: str) -> dict[int, int]:
        """The group's offsets by partition; partitions without one are left out."""
        deadline = time.monotonic() + COORDINATOR_SECONDS
        while True:
            try:
                found = await self._admin.list_consumer_group_offsets(group_id)
            except (GroupCoordinatorNotAvailableError, NotCoordinatorForGroupError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return {tp.partition: o.offset for tp, o in found.items() if tp.topic == topic and o.offset >= 0}

    async def ends(self, topic: str) -> dict[TopicPartition, int]:
        """High watermarks: what an open transaction has written counts."""
        async with self.reader(topic, isolation_level="read_uncommitted") as consumer:
            ends: dict[TopicPartition, int] = await consumer.end_offsets(list(consumer.assignment()))
            return ends

    async def read(self, topic: str, take: Take) -> bool:
        """Gives every committed record to `take`; True if the topic's oldest records are gone.

        Raises: TopicStalled.
        """
        first: dict[TopicPartition, int] = {}
        async with self.reader(topic, isolation_level="read_committed") as consumer:
            first = await consumer.beginning_offsets(list(consumer.assignment()))
        async for record in self.records(topic):
            take(record)
        return any(first.values())

    async def records(self, topic: str) -> AsyncIterator[ConsumerRecord]:
        """Every committed record.

        It reads up to the high watermark, so it waits for transactions that are open: what they committed elsewhere
        may have been seen already. Raises: TopicStalled.
        """
        ends = await self.ends(topic)
        async with self.reader(topic, isolation_level="read_committed") as consumer:
            await consumer.seek_to_beginning()
            async for record in _until(consumer, topic, ends):
                yield record

    async def record_at(self, topic: str, partition: int, offset: int) -> ConsumerRecord | None:
        """The committed record there; None where there is none, or none any more. Raises: TopicStalled."""
        where = TopicPartition(topic, partition)
        if where not in await self._partitions((topic,)):
            return None
        async with self.reader(topic, isolation_level="read_committed") as consumer:
            first, end = await consumer.beginning_offsets([where]), await consumer.end_offsets([where])
            if not first[where] <= offset < end[where]:
                return None
            consumer.assign([where])
            consumer.seek(where, offset)
            async for record in _until(consumer, topic, {where: offset + 1}):
                return record if record.offset == offset else None
        return None

    @asynccontextmanager
    async def reader(self, *topics: str, isolation_level: str) -> AsyncIterator[AIOKafkaConsumer]:
        """A consumer without a group that has every partition of the topics."""
        partitions = await self._partitions(topics)
        options = client_options(self._kafka)
        consumer = AIOKafkaConsumer(**options, isolation_level=isolation_level, auto_offset_reset="earliest")
        try:
            await start_client(consumer, options)
            consumer.assign(partitions)
            yield consumer
        finally:
            await consumer.stop()

    async def _partitions(self, topics: tuple[str, ...]) -> list[TopicPartition]:
        described = await self._admin.describe_topics(list(topics))
        return [TopicPartition(t["topic"], p["partition"]) for t in described for p in t["partitions"]]


@asynccontextmanager
async def opened(kafka: Kafka) -> AsyncIterator[Log]:
    """Raises: BrokerUnavailable."""
    async with admin_client(kafka) as admin:
        yield Log(kafka, admin)


async def _until(
    consumer: AIOKafkaConsumer, topic: str, ends: dict[TopicPartition, int]
) -> AsyncIterator[ConsumerRecord]:
    deadline = time.monotonic() + STALLED_SECONDS
    before = -1
    while not await reached(consumer, ends):
        for records in (await consumer.getmany(timeout_ms=POLL_MILLISECONDS)).values():
            for record in records:
                if record.offset < ends[TopicPartition(record.topic, record.partition)]:
                    yield record
        positions = sum([await consumer.position(tp) for tp in ends])
        if positions != before:
            before, deadline = positions, time.monotonic() + STALLED_SECONDS
        elif time.monotonic() > deadline:
            raise TopicStalled(topic=topic)


async def reached(consumer: AIOKafkaConsumer, ends: dict[TopicPartition, int]) -> bool:
    """Whether all before these offsets was read, markers of transactions included."""
    return all([await consumer.position(tp) >= end for tp, end in ends.items()])
