"""The lag of each partition, measured at intervals beside the work; it costs nothing per record."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

LOOK_SECONDS = 2.0
ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """Lag and state of one source partition at one measurement."""

    topic: str
    partition: int
    ready: bool
    """True while the partition is open and its records are handled."""
    lag_records: int
    """Number of records that are unread, in hand or not committed. In a source that is written in transactions, the
    transaction markers count too."""
    lag_seconds: float
    """Age of the oldest of these records; `Backlog` explains how it is computed."""
    state_bytes: int | None = None
    """Size of the local state on disk; None if there is no state."""
    scheduled: int | None = None
    """Number of rows in the index of deadlines."""
    next_deadline_ms: int | None = None
    """Earliest deadline in that index, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Work:
    """A partition's progress, as reported by the partition itself."""

    next_offset: int = -1
    """Offset of the first record that is not done; −1 if it is not known yet."""
    in_hand_ms: int | None = None
    """Timestamp of that record while it is being handled."""
    done_ms: int | None = None
    """Timestamp of the last record that this worker has finished."""


class Backlog:
    """Computes the lag of one partition from one measurement to the next.

    While the oldest unfinished record is being handled, its timestamp gives the age. The timestamp of an unread record
    is unknown. Its age is then at most the time since a record was last finished, since the worker last had read
    everything, or since the first measurement, whichever came last.
    """

    def __init__(self) -> None:
        self._since_ms: int | None = None

    def look(self, work: Work, position: int, end: int, now_ms: int) -> tuple[int, float]:
        """Return the lag in records and in seconds.

        `position` is the offset of the next record to read, and `end` the partition's end offset.
        """
        if work.in_hand_ms is None and position >= end:
            self._since_ms = now_ms
            return 0, 0.0
        self._since_ms = self._since_ms or now_ms
        oldest_ms = work.in_hand_ms or max(self._since_ms, work.done_ms or 0)
        first = work.next_offset if work.next_offset >= 0 else position
        return max(1, end - first), max(0, now_ms - oldest_ms) / 1000


class Lags:
    """The lag of all partitions that are assigned to an aiokafka consumer.

    `work_of` returns a partition's progress. If that has no offset, the group's committed offset counts.
    """

    def __init__(self, kafka: Any, work_of: Callable[[TopicPartition], Work], clock: Callable[[], int]) -> None:
        self._kafka = kafka
        self._work_of = work_of
        self._clock = clock
        self._backlogs: dict[TopicPartition, Backlog] = {}

    async def look(self) -> dict[TopicPartition, tuple[int, float]]:
        """Return the lag in records and in seconds. Raises: KafkaError, OSError, TimeoutError if no broker answers."""
        sources = sorted(self._kafka.assignment())
        self._backlogs = {source: self._backlogs.get(source) or Backlog() for source in sources}
        if not sources:
            return {}
        async with asyncio.timeout(ANSWER_SECONDS):
            ends = await self._kafka.end_offsets(sources)
            return {source: await self._of(source, int(ends[source])) for source in sources}

    async def _of(self, source: TopicPartition, end: int) -> tuple[int, float]:
        work = self._work_of(source)
        if work.next_offset >= 0:
            position = int(await self._kafka.position(source))
        else:
            position = int(await self._kafka.committed(source) or 0)
        return self._backlogs[source].look(work, position, end, self._clock())


async def regularly(lags: Lags) -> AsyncIterator[dict[TopicPartition, tuple[int, float]]]:
    """Yield the lag every `LOOK_SECONDS`, except while no broker answers."""
    while True:
        found = await _measured(lags)
        if found is not None:
            yield found
        await asyncio.sleep(LOOK_SECONDS)


async def _measured(lags: Lags) -> dict[TopicPartition, tuple[int, float]] | None:
    try:
        return await lags.look()
    except (KafkaError, IllegalStateError, OSError, TimeoutError):  # no broker, or a rebalance is under way
        return None


async def partition_statuses(app: Any) -> AsyncIterator[list[PartitionStatus]]:
    """Yield the status of all assigned partitions of a started app, every `LOOK_SECONDS`."""
    consumer = app.consumer
    lags = Lags(consumer.kafka, lambda source: _work(consumer.partitions.get(source)), app.engine.clock)
    async for found in regularly(lags):
        yield [_status_of(source, consumer.partitions.get(source), *lag) for source, lag in found.items()]


def _work(partition: Any) -> Work:
    return Work() if partition is None else partition.work()


def _status_of(source: TopicPartition, partition: Any, records: int, seconds: float) -> PartitionStatus:
    ready = partition is not None and partition.ready
    database = partition.session.database if partition is not None and partition.session is not None else None
    if database is None:
        return PartitionStatus(source.topic, source.partition, ready, records, seconds)
    state = database.size_bytes, database.scheduled, database.next_deadline()
    return PartitionStatus(source.topic, source.partition, ready, records, seconds, *state)
