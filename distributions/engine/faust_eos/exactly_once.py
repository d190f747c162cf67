"""A source partition processed exactly once, batch after batch; each batch is committed before the next one begins.

`ExactlyOncePartition` opens the partition, and opens it again after every failure. While it is open, its `Session`
polls, runs the agent and commits, and ticks when nothing is unread.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice, repeat
from typing import Any

import structlog
from aiokafka import TopicPartition

from faust_eos.batch import Batch, Batches, BatchMessage, NotTaken, Tick
from faust_eos.changelog import Bookmark, changelogs_of, new_lineage, recover
from faust_eos.database import Database, RowChange
from faust_eos.errors import (
    FATAL,
    TRANSIENT,
    AgentFailed,
    ChangelogLost,
    NoAgent,
    OutputRefused,
    StateLost,
    place_of,
    restart_seconds,
)
from faust_eos.failures import FAILURES, Isolation
from faust_eos.health import Mark
from faust_eos.kafka import Clients, check_order, check_partitions, readable
from faust_eos.metrics import Work
from faust_eos.transaction import (
    Output,
    Slices,
    TransactionalProducer,
    in_time,
    require_outputs,
    size_of,
    transactional_id,
)

log = structlog.get_logger()

CANCEL_SECONDS = 6.0
NOT_TAKEN_WAIT_SECONDS = 0.1
LINGER_SECONDS = 0.02
"""Wait between polls of a partition that lags a little; one that has caught up or is far behind does not wait."""
WITHDRAWN = -1
"""Generation of a message that Faust is to skip: no assignment has this generation."""
SHORTER = 0.1
"""Fraction of the usual wait, for a failure after which the batch is retried anyway."""
MOST_REJECTED = FAILURES
"""Maximum number of dead letters that wait to be committed with the next slice."""


class ExactlyOncePartition:
    """Runs until it is stopped, and answers every failure by closing the partition and opening it again.

    Opening a partition fences earlier owners, replays the changelogs, and seeks to the source offset that they hold.
    """

    def __init__(self, consumer: Any, source: TopicPartition, schema: Batches) -> None:
        self._consumer = consumer
        self._app = consumer.app
        self._options = consumer.app.engine
        self._source = source
        self._where = f"{source.topic}-{source.partition}"
        self._isolation = Isolation(self._where, self._options, self._app.breaker, schema)
        self._tables = {table.name: table for table in self._app.tables.values()}
        self._draining = False
        self._most_replayed = 0
        self._saved: tuple[int, Mapping[str, int]] = (-1, {})
        """Source offset, and the bookmark in each changelog: a tick moves only the bookmarks."""
        self._start = 0
        """Source offset at which the partition was last opened."""
        self._written: set[str] = set()
        """Topics that the agent has sent to."""
        self.last_error = ""
        """Class name of the error that made it start over; empty after the next commit."""
        self.session: Session | None = None
        self.task = asyncio.create_task(self._run(), name=f"partition {self._where}")
        self.task.add_done_callback(consumer.on_partition_exit)

    @property
    def ready(self) -> bool:
        """True when the partition is open: earlier owners are fenced and the state is recovered."""
        return self.session is not None and not self._draining

    def work(self) -> Work:
        return self.session.work if self.session is not None else Work()

    async def to_do(self, end: int) -> dict[str, Mark]:
        """Return a mark for each unfinished duty, for the watchdog. `end` is the end offset of the source."""
        session = self.session
        if session is not None:
            if session.declined:  # the agent waits for a dependency, and reports that itself
                return {}
            position = session.database.position
            saved = position.source, position.bookmarks
            if saved != self._saved:
                self._saved, self.last_error = saved, ""
            if not session.busy and await self._consumer.kafka.position(self._source) >= end:
                return {}
        sizes = self._isolation.slices.most, self._isolation.ticks.most
        return {f"nothing is committed of {self._where}": Mark((self._saved, self._most_replayed, sizes))}

    async def stop(self, within_seconds: float) -> None:
        """Finish the running batch or drop it whole; nothing can be written once this returns."""
        self._draining = True
        session = self.session
        if session is not None and session.begun:
            session.stopping = True
        else:  # the agent has not begun the batch, so the next owner processes it
            if session is not None:
                session.withdraw()
            self.task.cancel()
        await asyncio.wait([self.task], timeout=within_seconds)
        if not self.task.done():
            if session is not None:
                session.abandon()
            self.task.cancel()
            await asyncio.wait([self.task], timeout=CANCEL_SECONDS)

    async def _run(self) -> None:
        failures = 0
        while not self._draining:
            await self._consumer.in_group.wait()  # a rebalance under way may give the partition to another worker
            try:
                async with self._opened() as session:
                    failures = 0
                    await session.run()
            except FATAL:
                raise
            except OutputRefused:  # nobody else owns the partition, which would be a reason to wait
                continue
            except TRANSIENT as error:
                self.last_error = name = type(error).__name__
                log.warning("partition_restarted", partition=self._where, stage="engine", error_type=name)
            except AgentFailed:
                if not self._draining:
                    raise
            if not self._draining:
                failures += 1
                await asyncio.sleep(restart_seconds(self._app.conf.broker_heartbeat_interval, failures))

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator["Session"]:
        options, kafka, source, group = self._options, self._consumer.kafka, self._source, self._app.conf.id
        clients = self._consumer.clients()
        partitions = await check_partitions(clients, kafka, group, source.topic, may_grow=options.sources_may_grow)
        async with AsyncExitStack() as closing:
            producer = TransactionalProducer(transactional_id(group, source), clients, options)
            closing.push_async_callback(producer.close)
            await producer.open()
            deadlines = {name: table.deadline for name, table in self._tables.items()}
            database = self._consumer.open_database(self._where, deadlines)
            closing.callback(database.close)
            if self.last_error and self._written:  # a deleted topic may be the cause of the failure
                await require_outputs(clients, self._written)
            try:
                if self._tables:
                    await self._recover(database, clients)
                start = await self._start_offset(database.position.source, clients)
            except (StateLost, ChangelogLost):
                # Commits of a later owner look the same if only some of them are seen; then `check_owner` fails, and we
                # start over
                async with asyncio.timeout(options.commit_timeout_seconds):
                    await producer.check_owner(source, group)
                raise
            kafka.seek(source, start)
            kafka.resume(source)
            self.session = Session(
                self._consumer, source, self._tables, producer, database, self._isolation, self._written, partitions
            )
            try:
                yield self.session
            finally:
                self.session = None

    async def _recover(self, database: Database, clients: Clients) -> None:
        def note(records: int) -> None:
            # if several openings fail in a row, only one that gets further than the earlier ones counts as progress
            self._most_replayed = max(self._most_replayed, records)

        changelogs = changelogs_of(self._tables, self._source.partition)
        began, topic, stale_seconds = time.monotonic(), self._source.topic, self._options.stale_seconds
        records, rebuilt = await recover(database, changelogs, clients, topic, stale_seconds, note)
        seconds = time.monotonic() - began
        self._app.engine_metrics.recovered(records, seconds)
        log.info("recovered", partition=self._where, records=records, seconds=round(seconds, 3), rebuilt=rebuilt)

    async def _start_offset(self, recovered: int, clients: Clients) -> int:
        """Return the source offset of the changelogs' last transaction or, without tables, of the group's."""
        kafka, source = self._consumer.kafka, self._source
        async with asyncio.timeout(self._options.commit_timeout_seconds):
            position = await clients.committed(kafka, self._app.conf.id, source)
        committed = -1 if position is None else position.offset
        if not self._tables:
            recovered = committed
        if committed > recovered:
            raise StateLost(where=self._where, committed=committed, source=max(recovered, 0))
        self._start = await readable(kafka, source, recovered, self._app.engine_metrics, counted=self._start)
        return self._start


@dataclass(eq=False)
class Session:
    """An open partition. A failed batch has sent nothing, so it is run again with the same records."""

    consumer: Any
    source: TopicPartition
    tables: Mapping[str, Any]
    producer: TransactionalProducer
    database: Database
    isolation: Isolation
    written: set[str]
    """Collects the topics that the agent sends to."""
    partitions: int
    """The source's partition count."""
    stopping: bool = False
    """True once failures are no longer retried."""
    declined: bool = False
    """True if the agent took none of the last records that it was given, and will be given them again."""
    _rejected: list[Output] = field(default_factory=list)
    """Dead letters that are not committed yet, of records before the next slice."""
    _message: BatchMessage | None = None
    _in_hand_ms: int | None = None
    _last_ms: int | None = None

    def __post_init__(self) -> None:
        self._app = self.consumer.app
        self._options = self._app.engine
        self._where = f"{self.source.topic}-{self.source.partition}"
        self._changelogs = changelogs_of(self.tables, self.source.partition)

    # -- status

    @property
    def begun(self) -> bool:
        """True while the agent works on a batch or its batch is being committed."""
        return self._message is not None and self._message.tracked

    @property
    def busy(self) -> bool:
        """True while a batch is queued for the agent, in its hands, or being committed."""
        return self._message is not None

    @property
    def work(self) -> Work:
        return Work(self.database.position.source, self._in_hand_ms, self._last_ms)

    def withdraw(self) -> None:
        """Let the agent skip the batch that it has not begun."""
        if self._message is not None:
            self._message.generation_id = WITHDRAWN

    def abandon(self) -> None:
        """Drop whatever the agent writes from now on."""
        if self._message is not None:
            self._message.batch.abandon()

    # -- polling

    async def run(self) -> None:
        """Process records, and keys whose deadlines have passed, until the partition is to stop.

        A tick must not act on a deadline that an unread record would have moved. So a moment is noted together with
        the partition's end, and the tick comes once all records below that end are handled.
        """
        loop, kafka, source = asyncio.get_running_loop(), self.consumer.kafka, self.source
        moment_ms, end, looked, more = 0, None, 0.0, False
        while not self.stopping:
            await self._poll(wait=not more)
            if end is None and loop.time() - looked >= self._options.tick_seconds:
                moment_ms, looked = self._options.clock(), loop.time()
                deadlines = self.database.next_deadline(), self.database.next_tidying()
                if any(deadline is not None and deadline <= moment_ms for deadline in deadlines):
                    end = (await kafka.end_offsets([source]))[source]
            # when the partition is stopping, some fetched records may be unhandled
            if end is not None and await kafka.position(source) >= end and not self.stopping:
                more = await self.tick(moment_ms)
                end = end if more else None  # keys that are due at the same time share one moment

    async def _poll(self, *, wait: bool) -> None:
        """Process up to `max_batch` fetched records, then pause if the lag is small, to let the next batch grow.

        If there are no records and `wait` is true, this waits for some until the next check of the deadlines.
        """
        options, kafka, source = self._options, self.consumer.kafka, self.source
        timeout_ms = int(options.tick_seconds * 1000) if wait else 0
        got = await kafka.getmany(source, timeout_ms=timeout_ms, max_records=options.max_batch)
        for records in got.values():
            check_order(source, records[0].offset, self.database.position.source)
            await self.process(records)
        if got:
            position = await kafka.position(source)  # raises if it was given away; `highwater` would assert
            if 0 < (kafka.highwater(source) or 0) - position < options.max_batch:
                await asyncio.sleep(LINGER_SECONDS)

    async def tick(self, now_ms: int) -> bool:
        """Give the agent keys whose deadlines had passed at `now_ms`; the source offset stays.

        Returns whether there may be more such keys. A key that fails alone is skipped for a while.
        """
        most, slices, skipped = self._options.tick_keys, self.isolation.ticks, self.isolation.skipped()
        rows = self.database.due(now_ms, most + len(skipped))
        if rows is None:
            return True
        due = [row for row in rows if row not in skipped][:most]
        if not due:
            return False
        number = slices.take(repeat(0, len(due)))
        tick = Tick(self.source.topic, self.source.partition, now_ms, tuple(due[:number]))
        offset = max(self.database.position.source, 0)
        batch = await self._run_agent(tick, offset, slices, number)
        if isinstance(batch, AgentFailed):
            if number == 1:
                self.isolation.skip(due[0], batch)
            return True
        taken = batch.taken or number
        with self._blaming(slices, number, due[0]):
            await self._commit(batch, offset, slices, taken)
        self.isolation.breaker.succeeded()
        return taken < len(due) or len(due) == most

    async def process(self, records: Sequence[Any]) -> None:
        """Run the agent on the records and commit what it wrote, slice after slice, until the partition is to stop.

        A record that fails alone becomes a dead letter, which is committed with the next slice or after the last one.
        Raises: AgentFailed, EverythingFails, ChangelogReplaced, KafkaError, TimeoutError, StoreFailed.
        """
        at = 0
        while at < len(records) and not self.stopping:
            at += await self._process_slice(records, at)
            if len(self._rejected) == MOST_REJECTED or (at == len(records) and self._rejected):
                slices, last = self.isolation.slices, records[at - 1]
                with self._blaming(slices, 1, last):
                    await self._commit(Batch(self._where, None), last.offset + 1, slices, 1)

    async def _process_slice(self, records: Sequence[Any], at: int) -> int:
        """Process the next slice of records, from index `at` on; return how many of them are done."""
        slices = self.isolation.slices
        number = slices.take(map(size_of, islice(records, at, None)))
        part = records[at : at + number]
        if refused := self.isolation.refusal(part[0].offset):
            self._rejected.append(self.isolation.dead_letter(part[0], refused))
            return 1
        self._in_hand_ms, self._last_ms = part[0].timestamp, part[-1].timestamp
        batch = await self._run_agent(part, part[-1].offset + 1, slices, number)
        if isinstance(batch, AgentFailed):
            if number > 1:
                return 0
            self._rejected.append(self.isolation.dead_letter(part[0], batch))
            return 1
        taken = number if batch.taken is None else batch.taken
        self.declined = taken == 0
        if not taken and not batch.outputs and not self._rejected:
            self._message = self._in_hand_ms = None
            return 0
        offset = part[taken - 1].offset + 1 if taken else part[0].offset
        with self._blaming(slices, number, part[0]):
            await self._commit(batch, offset, slices, taken, sum(map(size_of, part)))
        self.isolation.breaker.succeeded()
        return taken

    @contextmanager
    def _blaming(self, slices: Slices, number: int, first: Any) -> Iterator[None]:
        """Note it if Kafka refuses the output of this slice, after which the partition has to be opened again.

        Raises: AgentFailed if Kafka refuses the dead letters that go with it.
        """
        try:
            yield
        except OutputRefused as error:
            if error.topic in {output.topic for output in self._rejected}:
                raise AgentFailed(where=self._where, cause=error) from error
            self.isolation.refuse(error, slices, number, first)
            raise

    # -- the agent

    async def _run_agent(
        self, work: Sequence[Any] | Tick, next_offset: int, slices: Slices, number: int
    ) -> Batch | AgentFailed:
        """Return the batch as the agent left it, or its failure if the slice is to be halved or rejected.

        A slice of one record is retried first.
        """
        options, isolation = self._options, self.isolation
        retries = options.agent_retries if number == 1 else 0
        wait = options.retry_wait_seconds * (SHORTER if number > 1 or isolation.breaker.is_counting else 1.0)
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._deliver(work, next_offset - 1, slices.most_written)
            except AgentFailed as failure:
                if self.stopping:
                    raise
                self._message = None  # nothing is running between two tries, so a stop need not wait
                what = {"error_type": type(failure.cause).__name__, "place": place_of(failure.cause)}
                log.error("agent_failed", partition=self._where, stage="agent", **what, attempt=attempt)
                if isinstance(failure.cause, isolation.stops):
                    raise
                if attempt > retries:
                    slices.agent_failed(number)
                    if number > 1:
                        await asyncio.sleep(wait)  # Faust restarts an agent that raised, at most 100 times a second
                    return failure
                await asyncio.sleep(wait * 2 ** (attempt - 1))

    async def _deliver(self, work: Sequence[Any] | Tick, offset: int, most_bytes: int) -> Batch:
        """Hand the work over, and return its batch once the agent is done."""
        while True:
            batch = Batch(self._where, self.database, self.consumer.stop_worker, most_bytes)
            generation = self._app.consumer_generation_id
            message = self._message = BatchMessage(
                batch, self.source, offset, self._options.clock() / 1000, work, generation
            )
            await self.consumer.callback(message)
            if not message.refcount and not message.acked:
                raise NoAgent(where=self._where)
            try:
                await batch.done
                return batch
            except AgentFailed as failure:
                if self.stopping or not isinstance(failure.cause, NotTaken):
                    raise
                await asyncio.sleep(NOT_TAKEN_WAIT_SECONDS)  # a rebalance has begun and will cancel this task

    # -- the transaction

    async def _commit(self, batch: Batch, next_offset: int, slices: Slices, number: int, read: int = 0) -> None:
        """Commit the batch and the dead letters before it, then write its rows to the database.

        It has `number` records or keys and was made from `read` bytes. After a timeout, the next try is half as large.
        """
        outputs = [*self._rejected, *batch.outputs]
        changes = {name: table.data.changes(batch) for name, table in self.tables.items()}
        self.written.update(output.topic for output in outputs)
        # Each commit puts a bookmark into each changelog: otherwise a lost changelog looks like that of an unchanged
        # table
        changelogs, before = self._changelogs, self.database.position
        bookmark = Bookmark(next_offset, before.lineage or new_lineage(), sorted(changes), before.source_id)
        rows = {changelogs[name]: changed for name, changed in changes.items()}
        previous = {changelogs[name]: offset for name, offset in before.bookmarks.items() if name in changes}
        context = (self.source, self._app.conf.id, previous, self.partitions)
        async with in_time(self._options, slices, self._where, number, read, written_bytes(outputs, changes)):
            marks = await self.producer.commit(outputs, rows, bookmark, *context)
        bookmarks = {**before.bookmarks, **{name: marks[changelogs[name]] for name in changes}}
        position = replace(before, source=bookmark.source, lineage=bookmark.lineage, bookmarks=bookmarks)
        self.database.write(changes, position)
        self._rejected.clear()
        self._message = self._in_hand_ms = None


def written_bytes(outputs: Iterable[Output], changes: Mapping[str, Sequence[RowChange]]) -> int:
    rows = sum(len(key) + len(value or b"") for changed in changes.values() for key, value in changed)
    return rows + sum(map(size_of, outputs))
