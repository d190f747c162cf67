"""How long a group stood still: lag, and no commit. Measured from outside, as whoever runs Kafka would."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

LOOK_SECONDS = 0.25
ANSWER_SECONDS = 5.0


class Stalls:
    """The longest time that any partition had unread records while its committed offset stayed where it was."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.committed = 0
        """Offsets of all partitions together, at the last look."""
        self.looks = 0
        self._lap = 0.0
        self._since: dict[int, tuple[int, float]] = {}

    def see(self, committed: Mapping[int, int], ends: Mapping[int, int], now: float) -> None:
        """By partition: the committed offset and the end. `now`: seconds of a monotonic clock."""
        self.committed = sum(committed.values())
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
        """Forgets what was before."""
        self.longest = self._lap = 0.0
        self._since = {}

    def lap(self) -> float:
        """The longest since the last call."""
        lap, self._lap = self._lap, 0.0
        return lap


@contextlib.asynccontextmanager
async def measured(bootstrap_servers: str, group: str, topic: str, partitions: int) -> AsyncIterator[Stalls]:
    """Looks while the block runs; what it cannot see, because no broker answers, it takes for unchanged."""
    stalls = Stalls()
    looking = asyncio.create_task(_look_always(stalls, bootstrap_servers, group, topic, partitions))
    try:
        yield stalls
    finally:
        looking.cancel()
        await asyncio.wait([looking])


async def _look_always(stalls: Stalls, servers: str, group: str, topic: str, partitions: int) -> None:
    sources = [TopicPartition(topic, number) for number in range(partitions)]
    while True:
        # aiokafka asserts that it knows a broker, and one that just comes up may name none
        with contextlib.suppress(KafkaError, OSError, AssertionError):
            async with _clients(servers) as (admin, consumer):
                while True:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        offsets = await admin.list_consumer_group_offsets(group)
                        ends = await consumer.end_offsets(sources)
                    committed = {source.partition: found.offset for source, found in offsets.items()}
                    stalls.see(committed, {s.partition: end for s, end in ends.items()}, time.monotonic())
                    await asyncio.sleep(LOOK_SECONDS)
        await asyncio.sleep(LOOK_SECONDS)


@contextlib.asynccontextmanager
async def _clients(servers: str) -> AsyncIterator[tuple[AIOKafkaAdminClient, AIOKafkaConsumer]]:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    consumer = AIOKafkaConsumer(bootstrap_servers=servers)
    try:
        await admin.start()
        await consumer.start()
        yield admin, consumer
    finally:
        await consumer.stop()
        await admin.close()
