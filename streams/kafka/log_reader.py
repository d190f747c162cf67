"""Reads whole topics, and the offsets of consumer groups."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence, Set
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.consumer.fetcher import READ_UNCOMMITTED
from aiokafka.errors import KafkaError, LeaderNotAvailableError, for_code
from aiokafka.protocol.offset import OffsetRequest, OffsetResetStrategy

from afterword.streams.errors import AfterwordError
from afterword.streams.kafka.clients import Position, admin_client, client_options, start_client
from afterword.streams.kafka.fetching import BoundedConsumer
from afterword.streams.settings import Kafka
from faust_eos.kafka import committed_offsets
from faust_eos.window import Progress

Take = Callable[[ConsumerRecord], None]

ReadProgress = Callable[[str, int, int | None], None]
"""Called with what is being done, how much is done, and how much there is, if known."""

POLL_MILLISECONDS = 500
RECORDS_TOGETHER = 500
"""aiokafka decodes this many in one step of the event loop."""
RETRY_SECONDS = 0.1
STALLED_SECONDS = 60.0
"""Exceeds our transaction timeout: if a read still waits, somebody else's transaction is open."""
NOTHING = Progress(0)
FEW = 100
"""If a group lags by no more than this, its records are counted one by one: there may be only transaction markers
left."""


class TopicStalled(AfterwordError):
    """topic {topic} cannot be read to its end: a transaction is still open on it, or a partition has no leader"""


class Extent(NamedTuple):
    """A range of some topics' records, from the first offsets to the high watermarks, including open transactions."""

    first: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]

    @property
    def size(self) -> int:
        """Number of offsets; some of them may have no record."""
        return sum(end - self.first[where] for where, end in self.ends.items())

    def before(self, later: "Extent") -> "Extent":
        """Return the extent of the records that were added to the topics between this extent and a later one."""
        return Extent({where: self.ends.get(where, 0) for where in later.ends}, later.ends)

    @property
    def truncated(self) -> set[str]:
        """Topics whose oldest records were deleted."""
        return {where.topic for where, offset in self.first.items() if offset}


class Log:
    """Topics of one cluster, read from the first record to the end at the time of the call."""

    def __init__(self, kafka: Kafka, admin: AIOKafkaAdminClient) -> None:
        self._kafka = kafka
        self._admin = admin

    async def topics(self) -> set[str]:
        return set(await self._admin.list_topics())

    async def committed(self, group_id: str, topic: str) -> dict[int, int]:
        """Return the group's committed offsets by partition, without partitions that have none."""
        return {partition: done.offset for partition, done in (await self._progress(group_id, topic)).items()}

    async def _progress(self, group_id: str, topic: str) -> dict[int, Progress]:
        offsets = await committed_offsets(self._admin, group_id)
        return {where.partition: Progress.read(*offset) for where, offset in offsets.items() if where.topic == topic}

    async def unread(
        self, group_id: str, topic: str, ends: Mapping[TopicPartition, int]
    ) -> AsyncGenerator[ConsumerRecord, None]:
        """Yield committed records before these ends that the group has not finished yet. Raises: TopicStalled."""
        progress = await self._progress(group_id, topic)
        for where, end in ends.items():
            done = progress.get(where.partition, NOTHING)
            if done.offset < end:
                async with aclosing(self.records_of(where, end, done.offset)) as records:
                    async for record in records:
                        if not done.covers(record.offset):
                            yield record

    async def unfinished(self, group_id: str, topic: str, records: Set[Position]) -> set[Position]:
        """Select the records that the group has not finished yet."""
        progress = await self._progress(group_id, topic)
        return {record for record in records if not progress.get(record.partition, NOTHING).covers(record.offset)}

    async def left(self, group_id: str, topic: str, ends: Mapping[TopicPartition, int]) -> int:
        """Count the records before these ends that the group has not committed yet. Raises: TopicStalled."""
        lag = sum((await self.lags(group_id, topic, ends)).values())
        return lag if lag > FEW else sum([1 async for _ in self.unread(group_id, topic, ends)])

    async def lags(self, group_id: str, topic: str, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the number of offsets between the group's and these ends, including those of transaction markers."""
        committed = await self.committed(group_id, topic)
        return {tp: max(0, end - committed.get(tp.partition, 0)) for tp, end in ends.items()}

    async def ends(self, topic: str) -> dict[TopicPartition, int]:
        """Return the high watermarks, which include records of open transactions. Raises: KafkaError."""
        return await self._offsets(topic, OffsetResetStrategy.LATEST)

    async def extent(self, topics: Sequence[str]) -> "Extent":
        """Return the topics' present extent. They are looked at one after the other, in this order."""
        first: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, int] = {}
        for topic in topics:
            ends |= await self.ends(topic)
            first |= await self._offsets(topic, OffsetResetStrategy.EARLIEST)
        return Extent(first, ends)

    async def _offsets(self, topic: str, which: int) -> dict[TopicPartition, int]:
        deadline = time.monotonic() + self._kafka.request_timeout_seconds
        while True:
            try:
                return await self._asked(topic, which)
            except KafkaError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    async def _asked(self, topic: str, which: int) -> dict[TopicPartition, int]:
        """Ask the partitions' leaders: this takes a fraction of what a consumer needs to start."""
        leaders = defaultdict(list)
        [described] = await self._admin.describe_topics([topic])
        for partition in described["partitions"]:
            if partition["leader"] < 0:
                raise LeaderNotAvailableError(topic)
            leaders[partition["leader"]].append((partition["partition"], which))
        offsets = {}
        for leader, partitions in leaders.items():
            request = OffsetRequest(-1, READ_UNCOMMITTED, [(topic, partitions)])
            answer = await self._admin._send_request(request, leader)  # noqa: SLF001 – aiokafka has no public method
            for number, code, _, offset in answer.topics[0][1]:
                if code:
                    raise for_code(code)(topic)
                offsets[TopicPartition(topic, number)] = offset
        return offsets

    async def read(self, topic: str, take: Take, progress: ReadProgress = lambda *_: None) -> None:
        """Pass every committed record to `take`, and call `progress` now and then. Raises: TopicStalled."""
        await self.read_all(await self.extent([topic]), {topic: take}, f"reading {topic}", progress)

    async def read_all(self, extent: "Extent", takes: Mapping[str, Take], what: str, progress: ReadProgress) -> None:
        """Pass every committed record of the extent to its topic's `take`, in order within a partition.

        This waits for transactions that were open at the extent's ends. `what` describes the read for `progress`.
        Raises: TopicStalled.
        """
        done = 0
        progress(what, done, extent.size)
        ends = {where: end for where, end in extent.ends.items() if extent.first[where] < end}
        if not ends:
            return
        async with self._reader_of(list(ends)) as consumer:
            for where in ends:
                consumer.seek(where, extent.first[where])
            async for records in batches(consumer, ends):
                take = takes[records[0].topic]
                for record in records:
                    take(record)
                done += len(records)
                progress(what, done, extent.size)

    async def records(self, topic: str) -> AsyncGenerator[ConsumerRecord, None]:
        """Yield every committed record up to the high watermarks, partition by partition, in the same order each time.

        This waits for open transactions, whose output on other topics may have been read already. Raises: TopicStalled.
        """
        extent = await self.extent([topic])
        for where, end in sorted(extent.ends.items()):
            if extent.first[where] < end:
                async with aclosing(self.records_of(where, end)) as records:
                    async for record in records:
                        yield record

    async def records_of(self, where: TopicPartition, end: int, start: int = 0) -> AsyncGenerator[ConsumerRecord, None]:
        """Yield one partition's committed records from `start` to before `end`. Raises: TopicStalled."""
        async with self._reader_of([where]) as consumer:
            first = await consumer.beginning_offsets([where])
            consumer.seek(where, max(first[where], start))
            async for records in batches(consumer, {where: end}):
                for record in records:
                    yield record

    async def record_at(self, topic: str, partition: int, offset: int) -> ConsumerRecord | None:
        """Return the committed record at this offset, or None if there is none. Raises: TopicStalled."""
        where, extent = TopicPartition(topic, partition), await self.extent([topic])
        if not extent.first.get(where, 0) <= offset < extent.ends.get(where, 0):
            return None
        async with aclosing(self.records_of(where, offset + 1, offset)) as records:
            return await anext(records, None)

    @asynccontextmanager
    async def reader(self, *topics: str, **options: Any) -> AsyncIterator[AIOKafkaConsumer]:
        """Open a consumer of committed records in all partitions of the topics, without a group."""
        described = await self._admin.describe_topics(list(topics))
        partitions = [TopicPartition(t["topic"], p["partition"]) for t in described for p in t["partitions"]]
        async with self._reader_of(partitions, **options) as consumer:
            yield consumer

    @asynccontextmanager
    async def _reader_of(self, partitions: Sequence[TopicPartition], **options: Any) -> AsyncIterator[AIOKafkaConsumer]:
        """Open a consumer of committed records in these partitions.

        They are assigned once: if others are assigned later, aiokafka may wait for ever.
        """
        options |= client_options(self._kafka)
        consumer = BoundedConsumer(**options, isolation_level="read_committed", auto_offset_reset="earliest")
        try:
            await start_client(consumer, options)
            consumer.assign(partitions)
            yield consumer
        finally:
            await consumer.stop()


@asynccontextmanager
async def open_log(kafka: Kafka) -> AsyncIterator[Log]:
    """Open the log of a cluster. Raises: BrokerUnavailable."""
    async with admin_client(kafka) as admin:
        yield Log(kafka, admin)


async def batches(
    consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int], together: int = RECORDS_TOGETHER
) -> AsyncIterator[list[ConsumerRecord]]:
    """Yield the committed records before these offsets, each batch from one partition, and no later ones.

    At most `together` records are decoded in one step of the event loop. Raises: TopicStalled.
    """
    deadline = time.monotonic() + STALLED_SECONDS
    before = -1
    # including transaction markers
    while left := [where for where, end in ends.items() if await consumer.position(where) < end]:
        given = await consumer.getmany(timeout_ms=POLL_MILLISECONDS, max_records=together)
        for where, records in given.items():
            if records[-1].offset >= ends[where]:
                consumer.seek(where, ends[where])
                records = [record for record in records if record.offset < ends[where]]
            if records:
                yield records
        positions = sum([await consumer.position(tp) for tp in ends])
        if positions != before:
            before, deadline = positions, time.monotonic() + STALLED_SECONDS
        elif time.monotonic() > deadline:
            raise TopicStalled(topic=", ".join(sorted({where.topic for where in left})))
