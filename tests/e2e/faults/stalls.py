"""Stalls of a partition: lag without progress. Measured from outside, like an operator of Kafka would."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from faust_eos.window import PREFIX, Progress

LOOK_SECONDS = 0.25
ANSWER_SECONDS = 5.0


class Stalls:
    """The longest time for which a partition had work but made no progress."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.committed = 0
        """Sum of all partitions' committed offsets, when last measured."""
        self.offsets: dict[int, int] = {}
        """Committed offsets by partition, when last measured."""
        self.lag = 0
        """Number of uncommitted records in all partitions, when last measured."""
        self.looks = 0
        self._lap = 0.0
        self._since: dict[int, tuple[int, float]] = {}

    def see(self, committed: Mapping[int, int], ends: Mapping[int, int], now: float) -> None:
        """Note the committed offset and the end of each partition. `now` is in seconds of a monotonic clock."""
        self.committed = sum(committed.values())
        self.offsets = dict(committed)
        self.lag = sum(max(0, end - committed.get(partition, 0)) for partition, end in ends.items())
        self.looks += 1
        for partition, end in ends.items():
            at = committed.get(partition, 0)
            before, since = self._since.get(partition, (at, now))
            if at >= end or at != before:
                since = now
            self._since[partition] = (at, since)
            self.longest = max(self.longest, now - since)
            self._lap = max(self._lap, now - since)

    def begin(self) -> None:
        """Forget earlier measurements."""
        self.longest = self._lap = 0.0
        self._since = {}

    def lap(self) -> float:
        """Return the longest stall since the last call."""
        lap, self._lap = self._lap, 0.0
        return lap


class LookingEnded(Exception):
    """An unexpected error ended the measurement; later stalls are missing."""


Found = tuple[Mapping[int, int], Mapping[int, int]]
"""Committed offsets and ends by partition, as `Stalls.see` takes them."""
Look = Callable[[], Awaitable[Found]]


@contextlib.asynccontextmanager
async def measured(watched: "Group", clock: Callable[[], float] = time.monotonic) -> AsyncIterator[Stalls]:
    """Measure while the block runs. While no broker answers, nothing counts as changed.

    Raises: LookingEnded, at the end of the block.
    """
    stalls = Stalls()
    task = asyncio.create_task(_look_always(stalls, watched, clock))
    try:
        yield stalls
    finally:
        ended = task.done()
        task.cancel()
        await asyncio.wait([task])
        if ended:
            raise LookingEnded from (None if task.cancelled() else task.exception())


async def _look_always(stalls: Stalls, watched: "Group", clock: Callable[[], float]) -> None:
    while True:
        # aiokafka asserts this if a starting broker names no broker
        with contextlib.suppress(KafkaError, OSError, AssertionError):
            async with watched.opened() as look:
                while True:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        done, ends = await look()
                    stalls.see(done, ends, clock())
                    await asyncio.sleep(LOOK_SECONDS)
        await asyncio.sleep(LOOK_SECONDS)


Client = TypeVar("Client", AIOKafkaAdminClient, AIOKafkaConsumer)


@contextlib.asynccontextmanager
async def started(client: Client) -> AsyncIterator[Client]:
    """Start and stop a client of Kafka, each in `ANSWER_SECONDS`: aiokafka would wait 40 s for a silent broker."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await client.start()
        yield client
    finally:
        async with asyncio.timeout(ANSWER_SECONDS):
            await (client.close() if isinstance(client, AIOKafkaAdminClient) else client.stop())


def finished(committed: OffsetAndMetadata) -> int:
    """Count a partition's finished records: the summarizer also commits which ones beyond the offset are finished."""
    progress = Progress.read(*committed) if committed.metadata.startswith(PREFIX) else Progress(committed.offset)
    return progress.offset + len(progress.beyond)


@dataclass(frozen=True)
class Group:
    """The records of a topic that a group has finished."""

    bootstrap_servers: str
    group: str
    topic: str
    partitions: int

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Look]:
        sources = [TopicPartition(self.topic, number) for number in range(self.partitions)]
        async with (
            started(AIOKafkaAdminClient(bootstrap_servers=self.bootstrap_servers)) as admin,
            started(AIOKafkaConsumer(bootstrap_servers=self.bootstrap_servers)) as consumer,
        ):

            async def look() -> Found:
                offsets = await admin.list_consumer_group_offsets(self.group)
                ends = await consumer.end_offsets(sources)
                done = {source.partition: finished(found) for source, found in offsets.items() if source in ends}
                return done, {source.partition: end for source, end in ends.items()}

            yield look
