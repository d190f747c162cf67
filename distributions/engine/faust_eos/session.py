"""One source partition while it is open: it polls, runs the agent and commits, and ticks when nothing is unread."""

import asyncio
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, islice, repeat
from typing import Any

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError
from faust.types.tuples import TP

from faust_eos.batch import Batch, BatchMessage, NotTaken, Output, Tick
from faust_eos.changelog import Bookmark, changelogs_of, new_lineage
from faust_eos.database import Database, RowChange
from faust_eos.errors import AgentFailed, NoAgent, SourceReplaced, place_of
from faust_eos.failures import FAILURES, Isolation
from faust_eos.lag import Work
from faust_eos.metrics import EngineMetrics
from faust_eos.options import Options
from faust_eos.transaction import Slices, TransactionalProducer, in_time

log = structlog.get_logger()

NOT_TAKEN_WAIT_SECONDS = 0.1
WITHDRAWN = -1
"""Generation of a message that Faust is to skip: no assignment has this generation."""
SHORTER = 0.1
"""Fraction of the usual wait after a failure that another retry follows anyway."""
MOST_REJECTED = FAILURES
"""Maximum number of dead letters that wait to be committed with the next slice."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """A moment, and the end of the partition at that moment: every earlier record is below that end."""

    now_ms: int
    end: int


@dataclass(frozen=True)
class Session:
    """An open partition's resources and its work with them; after any failure there is a new session."""

    source: TopicPartition
    group: str
    kafka: Any
    tables: Mapping[str, Any]
    producer: TransactionalProducer
    database: Database
    delivery: "Delivery"
    options: Options
    written: set[str]
    """Topics that the agent has sent to. The partition keeps this set, so that its next session knows them."""
    isolation: Isolation
    partitions: int
    """The source's partition count, which each commit records."""
    rejected: list[Output] = field(default_factory=list)
    """Dead letters that are not committed yet, of records before the next slice."""

    @cached_property
    def changelogs(self) -> Mapping[str, TopicPartition]:
        """Changelog partition of each table."""
        return changelogs_of(self.tables, self.source.partition)

    async def poll(self, *, wait: bool = True) -> None:
        """Process up to `max_batch` fetched records, then pause if the lag is small, to let the next batch grow.

        If there are no records and `wait` is true, this waits for some until the next check of the deadlines.
        """
        options = self.options
        timeout_ms = int(options.tick_seconds * 1000) if wait else 0
        got = await self.kafka.getmany(self.source, timeout_ms=timeout_ms, max_records=options.max_batch)
        for records in got.values():
            check_order(self.source, records[0].offset, self.database.position.source)
            await self.process(records)
        if got and 0 < await self.lag() < options.max_batch:
            await asyncio.sleep(options.linger_ms / 1000)

    async def lag(self) -> int:
        """Return the number of unread records, as of the last fetch."""
        position = await self.kafka.position(self.source)  # raises if it was given away; `highwater` would assert
        return int((self.kafka.highwater(self.source) or 0) - position)

    async def horizon(self) -> Horizon | None:
        """Return the present moment if some deadline has passed, else None.

        A tick must not act on a deadline that an unread record would have moved, so the horizon also has the end at
        that moment.
        """
        now = self.options.clock()
        deadlines = self.database.next_deadline(), self.database.next_expiry()
        if all(deadline is None or deadline > now for deadline in deadlines):
            return None
        end = (await self.kafka.end_offsets([self.source]))[self.source]
        return Horizon(now, end)

    async def reached(self, horizon: Horizon) -> bool:
        """Return whether all records before the horizon are handled; a stop may leave some that were fetched."""
        position = await self.kafka.position(self.source)
        return bool(position >= horizon.end) and not self.delivery.stopping

    async def tick(self, now_ms: int) -> bool:
        """Give the agent keys whose deadlines had passed at `now_ms`; the source offset stays.

        Returns whether there may be more such keys. A key that fails alone is skipped for a while.
        """
        most, slices, skipped = self.options.tick_keys, self.isolation.ticks, self.isolation.skipped()
        found = self.database.due(now_ms, most + len(skipped))
        if found is None:
            return True
        due = [row for row in found if row not in skipped][:most]
        if not due:
            return False
        number = slices.take(repeat(0, len(due)))
        tick = Tick(self.source.topic, self.source.partition, now_ms, tuple(due[:number]))
        offset = max(self.database.position.source, 0)
        batch = await self._run(tick, offset, slices, number)
        if isinstance(batch, AgentFailed):
            if number == 1:
                self.isolation.skip(due[0], batch)
            return True
        taken = batch.taken or number
        await self._commit_in_time(batch, offset, slices, taken)
        return taken < len(due) or len(due) == most

    async def process(self, records: Sequence[Any]) -> None:
        """Run the agent on the records and commit what it wrote, slice after slice, until the partition is to stop.

        A record that fails alone becomes a dead letter, which is committed with the next slice or after the last one.
        Raises: AgentFailed, EverythingFails, ChangelogReplaced, KafkaError, TimeoutError, StoreFailed.
        """
        at = 0
        while at < len(records) and not self.delivery.stopping:
            at += await self._process_slice(records, at)
            if len(self.rejected) == MOST_REJECTED or (at == len(records) and self.rejected):
                offset = records[at - 1].offset + 1
                await self._commit_in_time(self.delivery.new_batch(), offset, self.isolation.slices, 1)

    async def _process_slice(self, records: Sequence[Any], at: int) -> int:
        """Process the next slice of records, from index `at` on; return how many of them are done."""
        slices = self.isolation.slices
        number = slices.take(map(size_of, islice(records, at, None)))
        part = records[at : at + number]
        batch = await self._run(part, part[-1].offset + 1, slices, number)
        if isinstance(batch, AgentFailed):
            if number == 1:
                self.rejected.append(self.isolation.dead_letter(part[0], batch))
            return number if number == 1 else 0
        taken = number if batch.taken is None else batch.taken
        self.delivery.declined = taken == 0
        if not taken and not batch.outputs and not self.rejected:
            self.delivery.committed()
            return 0
        offset = part[taken - 1].offset + 1 if taken else part[0].offset
        await self._commit_in_time(batch, offset, slices, taken, sum(map(size_of, part)))
        return taken

    async def _run(
        self, work: Sequence[Any] | Tick, next_offset: int, slices: Slices, number: int
    ) -> Batch | AgentFailed:
        """Run the agent; return its failure if the slice is to be halved or rejected. Raises: AgentFailed, NoAgent."""
        options, isolation = self.options, self.isolation
        retries = options.agent_retries if number == 1 else 0
        wait = options.retry_wait_seconds * (SHORTER if number > 1 or isolation.is_counting else 1.0)
        try:
            batch = await self.delivery.run(work, next_offset, slices.most_written, retries, wait, isolation.must_stop)
        except AgentFailed as failure:
            if self.delivery.stopping or isolation.must_stop(failure):
                raise
            slices.agent_failed(number)
            if number > 1:
                await asyncio.sleep(wait)  # Faust restarts an agent that raised, at most 100 times a second
            return failure
        isolation.succeeded()
        return batch

    async def _commit_in_time(self, batch: Batch, next_offset: int, slices: Slices, number: int, read: int = 0) -> None:
        """Commit the batch, and the dead letters before it.

        It has `number` records or keys and was made from `read` bytes. After a timeout, the next try is half as large.
        """
        batch.outputs[:0] = self.rejected
        changes = {name: table.data.changes(batch) for name, table in self.tables.items()}
        where = f"{self.source.topic}-{self.source.partition}"
        async with in_time(self.options, slices, where, number, lambda: (read, written_bytes(batch.outputs, changes))):
            await self._commit(batch.outputs, changes, next_offset)
        self.rejected.clear()
        self.delivery.committed()

    async def _commit(
        self, outputs: Sequence[Output], changes: Mapping[str, Sequence[RowChange]], next_offset: int
    ) -> None:
        self.written.update(output.topic for output in outputs)
        # Each commit puts a bookmark into each changelog: otherwise a lost changelog looks like that of an unchanged
        # table
        changelogs, before = self.changelogs, self.database.position
        bookmark = Bookmark(next_offset, before.lineage or new_lineage(), sorted(changes))
        rows = {changelogs[name]: changed for name, changed in changes.items()}
        previous = {changelogs[name]: offset for name, offset in before.bookmarks.items() if name in changes}
        marks = await self.producer.commit(
            outputs, rows, bookmark, self.source, self.group, previous, before.source_id, self.partitions
        )
        bookmarks = {**before.bookmarks, **{name: marks[changelogs[name]] for name in changes}}
        position = replace(before, source=bookmark.source, lineage=bookmark.lineage, bookmarks=bookmarks)
        self.database.write(changes, position)


class Delivery:
    """Runs the agent on one batch at a time. A failed batch sent nothing, so it is retried with the same records."""

    def __init__(self, consumer: Any, source: TopicPartition, database: Database) -> None:
        self._consumer = consumer
        self._app = consumer.app
        self._options = consumer.app.engine
        self._tp = TP(*source)
        self._where = f"{source.topic}-{source.partition}"
        self._database = database
        self._current: BatchMessage | None = None
        self.stopping = False
        """True once failures are no longer retried."""
        self.declined = False
        """True if the agent took none of the last records that it was given, and will be given them again."""
        self._in_hand_ms: int | None = None
        self._last_ms: int | None = None

    @property
    def begun(self) -> bool:
        """True while the agent works on a batch or its batch is being committed."""
        return self._current is not None and self._current.tracked

    @property
    def busy(self) -> bool:
        """True while a batch is queued for the agent, in its hands, or being committed."""
        return self._current is not None

    def stop(self) -> None:
        """Stop retrying failures."""
        self.stopping = True

    def withdraw(self) -> None:
        """Let the agent skip the batch that it has not begun."""
        if self._current is not None:
            self._current.generation_id = WITHDRAWN

    def abandon(self) -> None:
        """Drop whatever the agent writes from now on."""
        if self._current is not None:
            self._current.batch.abandon()

    def committed(self) -> None:
        self._current = self._in_hand_ms = None

    @property
    def work(self) -> Work:
        return Work(self._database.position.source, self._in_hand_ms, self._last_ms)

    async def run(
        self,
        work: Sequence[Any] | Tick,
        next_offset: int,
        most_bytes: int,
        retries: int,
        wait_seconds: float,
        must_stop: Callable[[AgentFailed], bool],
    ) -> Batch:
        """Return the batch as the agent left it.

        `wait_seconds` is the wait before the first retry; it doubles with each one. A failure for which `must_stop`
        returns True is not retried. Raises: AgentFailed if the agent failed too often; NoAgent.
        """
        failures = 0
        if not isinstance(work, Tick):
            self._in_hand_ms, self._last_ms = work[0].timestamp, work[-1].timestamp
        while True:
            try:
                return await self._deliver(work, next_offset, most_bytes)
            except AgentFailed as error:
                if self.stopping:
                    raise
                if isinstance(error.cause, NotTaken):  # a rebalance has begun and will cancel this task
                    await asyncio.sleep(NOT_TAKEN_WAIT_SECONDS)
                    continue
                failures += 1
                self._current = None  # between two runs nothing has begun, so a stop need not wait
                self._log(error, failures)
                if failures > retries or must_stop(error):
                    raise
                await asyncio.sleep(wait_seconds * 2 ** (failures - 1))

    def _log(self, error: AgentFailed, failures: int) -> None:
        name, place = type(error.cause).__name__, place_of(error.cause)
        log.error("agent_failed", partition=self._where, stage="agent", error_type=name, place=place, attempt=failures)

    def new_batch(self, most_bytes: int = sys.maxsize) -> Batch:
        return Batch(self._where, self._database, self._consumer.stop_worker, most_bytes)

    async def _deliver(self, work: Sequence[Any] | Tick, next_offset: int, most_bytes: int) -> Batch:
        batch = self.new_batch(most_bytes)
        message = self._current = self._message(batch, work, next_offset - 1)
        await self._consumer.callback(message)
        if not message.refcount and not message.acked:
            raise NoAgent(where=self._where)
        await batch.done
        return batch

    def _message(self, batch: Batch, work: Sequence[Any] | Tick, offset: int) -> BatchMessage:
        return BatchMessage(
            batch,
            topic=self._tp.topic,
            partition=self._tp.partition,
            offset=offset,
            timestamp=self._options.clock() / 1000,
            timestamp_type=0,
            headers=(),
            key=None,
            value=work,
            checksum=None,
            serialized_key_size=0,
            serialized_value_size=0,
            tp=self._tp,
            generation_id=self._app.consumer_generation_id,
        )


def size_of(record: Any) -> int:
    """Return the size of an aiokafka record in bytes."""
    named = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + named


def written_bytes(outputs: Iterable[Output], changes: Mapping[str, Sequence[RowChange]]) -> int:
    rows = sum(len(key) + len(value or b"") for changed in changes.values() for key, value in changed)
    return rows + sum(output.size_bytes for output in outputs)


def check_order(source: TopicPartition, found: int, expected: int) -> None:
    """Refuse records from before the expected offset; aiokafka silently starts over if the topic was recreated.

    Raises: OffsetOutOfRangeError.
    """
    if found < expected:
        raise OffsetOutOfRangeError(f"{source.topic}-{source.partition} went back from {expected} to {found}")


async def readable(
    kafka: Any,
    source: TopicPartition,
    position: int,
    metrics: EngineMetrics,
    counted: int = 0,
    finished: Collection[int] = frozenset(),
) -> int:
    """Return `position`, or the log start if that is later; the offsets between them expired unread.

    Only offsets below the log start are lost; above it, compaction, aborted records and transaction markers leave
    holes. `kafka` is an aiokafka consumer. `position` is −1 for a group that has none, which then begins at the log
    start. Losses below `counted` were already reported or concern finished records. `finished` are the finished offsets
    beyond `counted`.

    Raises: SourceReplaced if the source ends before `position`; KafkaError, TimeoutError.
    """
    first = int((await kafka.beginning_offsets([source]))[source])
    end = int((await kafka.end_offsets([source]))[source])
    if position > end:
        raise SourceReplaced(where=f"{source.topic}-{source.partition}", end=end, source=position)
    unread = max(position, counted)
    lost = first - unread - sum(unread <= offset < first for offset in finished)
    if position >= 0 and lost > 0:
        first_lost = next(offset for offset in count(unread) if offset not in finished)
        report_expired(source, metrics, first_lost, first, lost)
    return max(position, first)


def report_expired(source: TopicPartition, metrics: EngineMetrics, first: int, next_offset: int, lost: int) -> None:
    """Count and log records that were deleted before they were read.

    `first` is the offset of the first lost record and `lost` their number; `next_offset` is that of the first one left.
    """
    metrics.expired(lost)
    log.error(
        "records_expired",
        topic=source.topic,
        partition=source.partition,
        stage="consume",
        error_type="expired",
        first_lost=first,
        next_offset=next_offset,
        count=lost,
    )
