"""Prometheus metrics of the engine, and the measurement of each partition's lag."""

import asyncio
import tomllib
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

LOOK_SECONDS = 2.0
ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """Lag and state of one source partition at one measurement, which costs nothing per record."""

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


async def measure_regularly(app: Any) -> None:
    """Show the lag and state of a started app's partitions every `LOOK_SECONDS`, except while no broker answers."""
    consumer = app.consumer
    backlogs: dict[TopicPartition, Backlog] = {}
    while True:
        sources = sorted(consumer.kafka.assignment())
        backlogs = {source: backlogs.get(source) or Backlog() for source in sources}
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                ends = await consumer.kafka.end_offsets(sources) if sources else {}
                statuses = [await _status(app, source, int(ends[source]), backlogs[source]) for source in sources]
            app.engine_metrics.show(statuses)
        except (KafkaError, IllegalStateError, OSError, TimeoutError):  # no broker, or a rebalance is under way
            pass
        await asyncio.sleep(LOOK_SECONDS)


async def _status(app: Any, source: TopicPartition, end: int, backlog: Backlog) -> PartitionStatus:
    kafka, partition = app.consumer.kafka, app.consumer.partitions.get(source)
    work = Work() if partition is None else partition.work()
    position = await kafka.position(source) if work.next_offset >= 0 else await kafka.committed(source)
    lag = backlog.look(work, int(position or 0), end, app.engine.clock())
    ready = partition is not None and partition.ready
    if partition is None or partition.session is None:
        return PartitionStatus(source.topic, source.partition, ready, *lag)
    database = partition.session.database
    state = database.size_bytes, database.scheduled, database.next_deadline()
    return PartitionStatus(source.topic, source.partition, ready, *lag, *state)


class Family(NamedTuple):
    """A metric family as a reference page shows it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


KINDS: dict[str, Any] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}


def add_families(owner: object, registry: CollectorRegistry, prefix: str, table: str) -> list[Family]:
    """Make the metric families of a TOML table as attributes of their owner, and return their descriptions.

    Each row has `kind`, `name` without the prefix, `meaning`, and perhaps `labels` and `buckets`.
    """
    described = []
    for attribute, row in tomllib.loads(table).items():
        name, labels = prefix + row["name"], tuple(row.get("labels", ()))
        further = {"buckets": row["buckets"]} if "buckets" in row else {}
        setattr(owner, attribute, KINDS[row["kind"]](name, row["meaning"], labels, registry=registry, **further))
        described.append(Family(name, row["kind"], labels, row["meaning"]))
    return described


class EngineMetrics:
    """Lag, state, recoveries, rebalances, stalls and losses of one worker. Nothing here is called once per record."""

    lag_records: Gauge
    lag_seconds: Gauge
    state_bytes: Gauge
    recovery_seconds: Histogram
    recovered_records: Counter
    rebalance_seconds: Histogram
    stalls: Counter
    losses: Counter

    def __init__(self, registry: CollectorRegistry, role: str, prefix: str = "engine_") -> None:
        """`role` is the value of the label `role`; `prefix` begins every name."""
        table = (files(__package__) / "metrics.toml").read_text(encoding="utf-8")
        self.described = add_families(self, registry, prefix, table)
        self.partition_statuses: Sequence[PartitionStatus] = ()
        """The assigned partitions at the last measurement."""
        self.groups = [self]
        """The consumer groups of this process, each with its own statuses."""
        self.role = role
        self._shown: set[tuple[Gauge, tuple[str, ...]]] = set()
        self.count_from_zero()

    def count_from_zero(self) -> None:
        """Show 0 first: Prometheus sees an increase only after it."""
        for counter in (self.stalls, self.losses):
            counter.labels(self.role)

    def recovered(self, records: int, seconds: float) -> None:
        """Count a partition whose state was brought up to date from `records` changelog records in `seconds`."""
        self.recovery_seconds.labels(self.role).observe(seconds)
        self.recovered_records.inc(records)

    def rebalanced(self, seconds: float) -> None:
        """Count a rebalance that took `seconds` from revoking the old partitions to assigning the new ones."""
        self.rebalance_seconds.labels(self.role).observe(seconds)

    def stalled(self, times: int = 1) -> None:
        """Count stalls; after each of them the watchdog ends the worker."""
        self.stalls.labels(self.role).inc(times)

    def expired(self, count: int) -> None:
        """Count offsets of a source that were deleted before they were read."""
        self.losses.labels(self.role).inc(count)

    def of_group(self, role: str) -> "EngineMetrics":
        """Return the same metrics, labelled with `role`, for another consumer group of this process."""
        other = copy(self)
        vars(other).update(role=role, _shown=set(), partition_statuses=())
        other.count_from_zero()
        self.groups.append(other)
        return other

    def show(self, partition_statuses: Sequence[PartitionStatus]) -> None:
        """Replace the lag and state of the partitions shown before with those in `partition_statuses`."""
        self.partition_statuses = partition_statuses
        for gauge, labels in self._shown:
            gauge.remove(*labels)  # the new owner reports a partition that has moved
        self._shown = set()
        for status in partition_statuses:
            labels = self.role, status.topic, str(status.partition)
            self._set(self.lag_records, labels, status.lag_records)
            self._set(self.lag_seconds, labels, status.lag_seconds)
            if status.state_bytes is not None:
                self._set(self.state_bytes, labels[2:], status.state_bytes)

    def _set(self, gauge: Gauge, labels: tuple[str, ...], value: float) -> None:
        gauge.labels(*labels).set(value)
        self._shown.add((gauge, labels))
