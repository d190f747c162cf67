"""A source partition whose records are handled at least once, many at a time, and whose outputs are sent exactly once.

The engine keeps what the agent sends for a record until the record is done. One transaction then commits the outputs of
the finished records together with the group's offset, whose metadata names every one of those records. So no output is
sent without its record being marked as finished, and no record is handled again after its outputs were sent.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import structlog
from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from faust_eos.batch import NOT_DONE, Batch, EngineMessage, RawSchema, Reject, bound
from faust_eos.errors import FATAL, TRANSIENT, AgentFailed, OutputRefused, restart_seconds
from faust_eos.failures import Breaker
from faust_eos.health import Mark
from faust_eos.kafka import check_order, readable, report_expired
from faust_eos.metrics import Work
from faust_eos.transaction import (
    Slices,
    TransactionalProducer,
    in_time,
    require_outputs,
    size_of,
    transactional_id,
)
from faust_eos.window import Progress, Window, reach

log = structlog.get_logger()

POLL_MS = 1000
SPILLED_POLL_MS = 50
"""Poll timeout while some waiting records are not in memory: the turn of one may come at any time."""
WAITING = 16
"""Records in memory that wait for an earlier one with their key, for each that may be handed over. To read one again
means to fetch up to a megabyte twice: the consumer drops what it has fetched when it seeks."""
BACKLOG_SECONDS = 1.0
"""Longest time that finished records wait for others in a backlog."""
LAST_COMMIT_SECONDS = 3.0
CANCEL_SECONDS = 6.0
RETRY_SECONDS = 1.0


Order = Callable[[Any], Hashable]
"""Maps an aiokafka record to its key. Records with the same key are handled in order; None means unordered."""


class AtLeastOnce(RawSchema):
    """The schema of a source whose records are handled one by one, many at a time, without tables.

    The agent reads `stream.noack()` and calls `event.ack()` when a record is done; an event's value is the raw aiokafka
    record. Records with the same `order` key are handed over one after the other and do not block those with other
    keys. By default, records are unordered. `reject` makes the dead letter of a record for which the agent sent what
    Kafka refuses; without it, such a record stops the worker.
    """

    def __init__(self, *args: Any, order: Order = lambda _: None, reject: Reject | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.order = order
        self.reject = reject


class ConcurrentMessage(EngineMessage):
    """A Faust message of one of many concurrent records; the agent calls `event.ack()` when it is done with it."""

    __slots__ = ("on_done", "on_rest", "rejected", "rests")

    def __init__(
        self,
        on_done: Callable[["ConcurrentMessage"], None],
        *args: Any,
        on_rest: Callable[[], None] = lambda: None,
    ) -> None:
        self.on_done = on_done
        self.on_rest = on_rest
        self.rests = False
        """True while nobody is working on the record: see `mark_idle`."""
        self.rejected = False
        """True once its output is its dead letter, because Kafka refuses what the agent sent."""
        super().__init__(*args)

    @property
    def size(self) -> int:
        """Bytes of the record and of what it sends."""
        return sum(map(size_of, (self.value, *self.batch.outputs)))

    def on_final_ack(self, consumer: Any) -> bool:  # noqa: ARG002 – the signature is Faust's
        setattr(self, "acked", True)  # noqa: B010 – a slot of Faust's, which its types do not show
        if self.tracked and not isinstance(sys.exc_info()[1], NOT_DONE):  # a message that Faust skipped was not handled
            self.batch.finish()
            self.on_done(self)
        return True


class AtLeastOncePartition:
    """Feeds an agent that has slow concurrent handlers and no tables, and commits what it sends.

    There are three tasks: one reads records, one hands them over, and one commits those that are finished, one
    transaction at a time. Records that finish during a commit wait for the next one, as do records that would make a
    transaction too large. In a backlog, transactions wait until they are worth their cost.
    """

    session = None

    def __init__(self, consumer: Any, source: TopicPartition, schema: AtLeastOnce) -> None:
        self._consumer = consumer
        self._app = consumer.app
        self._options = consumer.app.engine
        self._clients = consumer.clients()
        self._order, self._reject = schema.order, schema.reject
        self._breaker = Breaker()
        self._source = source
        self._where = f"{source.topic}-{source.partition}"
        most: int = self._options.max_in_flight
        width, bytes_in_flight = reach(self._options.offset_metadata_bytes), self._options.max_in_flight_bytes
        self._window: Window[Any] = Window(most, width, bytes_in_flight, size_of, WAITING * most)
        most_bytes = self._options.max_written_bytes
        self._most_finished = 2 * most
        self._slices = Slices(self._most_finished, most_bytes, most_bytes)
        """Sizes of the transactions: the number of finished records, and the bytes of what they send."""
        self._due: asyncio.Queue[Any] = asyncio.Queue()
        """Records that are due to be handed over."""
        self._in_hand: dict[int, ConcurrentMessage] = {}
        self._finished: list[ConcurrentMessage] = []
        """Finished records that are not committed yet, in the order in which they finished."""
        self._finished_bytes = 0
        """Bytes of these records and of what they send."""
        self._committed: Progress | None = None
        self._writes = False
        """True while the producer is open, so that earlier owners are fenced."""
        self._written: set[str] = set()
        self._last_ms: int | None = None
        self._known = asyncio.Event()
        """Set once the group's committed offset is known."""
        self._changed = asyncio.Event()
        self._something_sent = asyncio.Event()
        self.last_error = ""
        """Class name of the last error in a fetch or a commit; empty after the next commit."""
        self.task = self._start(self._keep_committing(), "commits of")
        self._feeding = [
            self._start(self._keep_reading(), "reads"),
            self._start(self._keep_handing_over(), "hands over"),
        ]

    def _start(self, work: Any, what: str) -> "asyncio.Task[None]":
        task = asyncio.create_task(work, name=f"{what} {self._where}")
        task.add_done_callback(self._consumer.on_partition_exit)
        return task

    # -- status

    @property
    def ready(self) -> bool:
        return self._writes and self._window.next >= 0

    def work(self) -> Work:
        return Work(self._window.lowest, self._window.lowest_ms, self._last_ms)

    async def to_do(self, end: int) -> dict[str, Mark]:
        """Return a mark for each unfinished duty, for the watchdog. `end` is the end offset of the source."""
        marks: dict[str, Mark] = {}
        if self._window.unfinished:
            # the agent may be busy with records of other partitions
            marks[f"records of {self._where} are not finished"] = Mark(self._consumer.handled, handling=True)
        # the partition is reopened after each failing commit, and is not ready in the meantime
        if not self.ready or self._window.progress() != self._committed:
            marks[f"nothing is committed of {self._where}"] = Mark((self._committed, self._slices.most))
        if self.ready and self._may_read and self._window.next < end:
            marks[f"nothing is read of {self._where}"] = Mark(self._window.next)
        return marks

    # -- life cycle

    async def stop(self, within_seconds: float) -> None:
        """Stop reading, wait for the records that the agent has begun, and commit those that finish."""
        for task in self._feeding:
            task.cancel()
        await asyncio.wait(self._feeding)
        self._changed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                await self._until(lambda: not any(m.tracked and not m.rests for m in self._in_hand.values()))
        if self._writes:
            with contextlib.suppress(TimeoutError):  # at worst, the partition's records are handled again
                async with asyncio.timeout(LAST_COMMIT_SECONDS):
                    await self._until(lambda: self._window.progress() == self._committed)
        self.task.cancel()
        await asyncio.wait([self.task], timeout=CANCEL_SECONDS)
        for message in self._in_hand.values():
            message.batch.abandon()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for the condition. During a stop, offsets without outputs are committed immediately."""
        while not condition():
            self._something_sent.set()
            self._changed.clear()
            await self._changed.wait()

    def _failed(self, event: str, stage: str, error: BaseException) -> None:
        self.last_error = name = type(error).__name__
        log.warning(event, partition=self._where, stage=stage, error_type=name)

    # -- reading

    async def _keep_reading(self) -> None:
        await self._known.wait()
        while True:
            try:
                await self._seek()
                while True:
                    missed = self._window.to_read_again() if self._room > 0 else None
                    if missed is not None:
                        await self._read_again(missed)
                    if self._may_read:
                        await self._read_on()
                    elif missed is None:
                        self._changed.clear()
                        await self._changed.wait()
            except FATAL:
                raise
            except TRANSIENT as error:
                self._failed("fetching_restarted", "engine", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _seek(self) -> None:
        kafka, window, metrics = self._consumer.kafka, self._window, self._app.engine_metrics
        done = window.progress()
        window.advance(await readable(kafka, self._source, window.next, metrics, done.offset, done.beyond))
        if window.to_read_again() is not None:
            first = int((await kafka.beginning_offsets([self._source]))[self._source])
            self._lose(window.missed_before(first), first)
        if self._committed is None:
            self._committed = Progress(window.next)
        kafka.seek(self._source, window.next)
        kafka.resume(self._source)

    async def _read_on(self) -> None:
        """Read the next records. While they are fetched, the window may learn that another owner has finished them."""
        kafka, window, first = self._consumer.kafka, self._window, self._window.next
        timeout_ms = SPILLED_POLL_MS if window.has_spilled else POLL_MS
        got = await kafka.getmany(self._source, timeout_ms=timeout_ms, max_records=self._room)
        for records in got.values():
            check_order(self._source, records[0].offset, first)
            for record in records:
                if record.offset < window.next or not window.fits(record.offset) or window.room <= 0:
                    kafka.seek(self._source, window.next)
                    return
                self._last_ms = record.timestamp
                self._put(window.add(record.offset, self._order(record), record, record.timestamp))
        # Advance past transaction markers too: otherwise one that expires after the last record looks like a lost
        # record
        window.advance(await kafka.position(self._source))

    async def _read_again(self, missed: int) -> None:
        """Read a record whose turn has come, together with waiting records that follow it."""
        kafka, window = self._consumer.kafka, self._window
        kafka.seek(self._source, missed)
        most = WAITING * self._options.max_in_flight
        got = await kafka.getmany(self._source, timeout_ms=POLL_MS, max_records=most)
        for records in got.values():
            check_order(self._source, records[0].offset, missed)
            if records[0].offset > missed:
                self._lose([missed], records[0].offset)
            for record in records:
                if window.room > 0:  # others that are missed are read next time
                    self._put(window.add_again(record.offset, record))
        kafka.seek(self._source, window.next)

    @property
    def _room(self) -> int:
        """Number of further records that may be handed over. Some more may be finished and await their commit."""
        return min(self._window.room, 0 if self._is_full else self._most_finished - len(self._finished))

    @property
    def _is_full(self) -> bool:
        """True if no more finished records may wait for their commit."""
        is_heavy = self._finished_bytes >= self._options.max_in_flight_bytes
        return is_heavy or len(self._finished) >= self._most_finished

    @property
    def _is_behind(self) -> bool:
        """True while at least half as many records are in hand as may be, and more may finish before a commit."""
        is_busy = 2 * self._window.room <= self._options.max_in_flight and not self._feeding[0].done()
        return is_busy and not self._is_full

    @property
    def _may_read(self) -> bool:
        return self._room > 0 and not self._window.is_full

    def _lose(self, offsets: Iterable[int], first: int) -> None:
        """Give up records that expired before they could be read again. `first` is the offset of the first one left."""
        lost = []
        for offset in offsets:
            self._put(self._window.lose(offset))
            lost.append(offset)
        if lost:
            report_expired(self._source, self._app.engine_metrics, lost[0], first, len(lost))

    # -- handing over

    def _put(self, records: Iterable[tuple[int, Any]]) -> None:
        for _, record in records:
            self._due.put_nowait(record)

    async def _keep_handing_over(self) -> None:
        while True:
            record = await self._due.get()
            batch, generation = Batch(self._where, None, self._consumer.stop_worker), self._app.consumer_generation_id
            place = self._source, record.offset, record.timestamp / 1000
            message = ConcurrentMessage(self._done, batch, *place, record, generation, on_rest=self._changed.set)
            self._in_hand[record.offset] = message
            await self._consumer.callback(message)

    def _done(self, message: ConcurrentMessage) -> None:
        self._in_hand.pop(message.offset, None)
        self._finished.append(message)
        self._finished_bytes += message.size
        self._put(self._window.finish(message.offset))
        self._consumer.handled += 1
        if message.batch.outputs or self._is_full:
            self._something_sent.set()
        self._changed.set()

    # -- committing

    async def _keep_committing(self) -> None:
        failures = 0
        while True:
            try:
                async with self._opened() as producer:
                    while True:
                        await self._something_to_commit()
                        await self._commit(producer)
                        failures = 0
            except FATAL:
                raise
            except OutputRefused:  # its slice is halved, or its record rejected
                continue
            except TRANSIENT as error:
                self._failed("commit_failed", "commit", error)
            failures += 1
            await asyncio.sleep(restart_seconds(self._app.conf.broker_heartbeat_interval, failures))

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[TransactionalProducer]:
        """Fence earlier owners and learn what they committed."""
        writer = transactional_id(self._app.conf.id, self._source)
        producer = TransactionalProducer(writer, self._clients, self._options)
        try:
            await producer.open()
            if self.last_error and self._written:  # a deleted topic may be the cause of the failure
                await require_outputs(self._clients, self._written)
            await self._learn()
            self._writes = True
            yield producer
        finally:
            self._writes = False
            await producer.close()

    async def _learn(self) -> None:
        """Learn what the group has committed, which may include a transaction of ours that got no answer."""
        async with asyncio.timeout(self._options.commit_timeout_seconds):
            committed = await self._clients.committed(self._consumer.kafka, self._app.conf.id, self._source)
        if committed is not None:
            self._committed = Progress.read(*committed)
            if committed.metadata and not self._committed.beyond:
                log.error("progress_refused", partition=self._where, stage="engine", offset=committed.offset)
            self._window.learn(self._committed)
        self._known.set()
        self._something_sent.set()
        self._changed.set()  # now there may be room to read more

    async def _something_to_commit(self) -> None:
        """Wait for outputs, or for the interval at which offsets without outputs are committed.

        In a backlog, wait until many records are finished: a transaction of one record costs as much as one of fifty.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.commit_interval_seconds):
                    await self._something_sent.wait()
            self._something_sent.clear()
            if self._window.next >= 0 and (self._finished or self._window.progress() != self._committed):
                break
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BACKLOG_SECONDS):
                while self._is_behind:
                    self._changed.clear()
                    await self._changed.wait()

    async def _commit(self, producer: TransactionalProducer) -> None:
        """Commit the records that are finished by now, or as many of them as fit into one transaction.

        The records that finished last are left for the next transaction.
        """
        before = self._committed
        self._finished = [message for message in self._finished if before is None or not before.covers(message.offset)]
        sizes = [sum(map(size_of, message.batch.outputs)) for message in self._finished]
        number = self._slices.take(sizes)
        rest = {message.offset for message in self._finished[number:]}
        progress = self._window.progress(without=rest)
        outputs = [output for message in self._finished[:number] for output in message.batch.outputs]
        self._written.update(output.topic for output in outputs)
        written = sum(sizes[:number])
        timing = in_time(self._options, self._slices, self._where, number, written, written)
        async with timing if number else asyncio.timeout(self._options.commit_timeout_seconds):
            offset = OffsetAndMetadata(progress.offset, progress.metadata())
            try:
                await producer.commit_outputs(outputs, {self._source: offset}, self._app.conf.id)
            except OutputRefused as error:
                self._refused(error, self._finished[:number])
                raise
        if not all(message.rejected for message in self._finished[:number]):
            self._breaker.succeeded()
        del self._finished[:number]
        self._finished_bytes = sum(message.size for message in self._finished)
        self._window.committed(progress)
        self._committed, self.last_error = progress, ""
        self._changed.set()
        if rest:
            self._something_sent.set()

    def _refused(self, error: OutputRefused, messages: Sequence[ConcurrentMessage]) -> None:
        """Halve the slice whose output Kafka refuses, or replace the output of its only record with its dead letter.

        Raises: EverythingFails; AgentFailed if there is no dead letter, or if Kafka refuses it, too.
        """
        log.error("output_refused", partition=self._where, stage="commit", problem=str(error), records=len(messages))
        self._slices.agent_failed(len(messages))
        if len(messages) > 1:
            return
        message = messages[0]
        if self._reject is None or message.rejected:
            raise AgentFailed(where=self._where, cause=error) from error
        self._breaker.failed(message.value.key)
        self._breaker.check(self._where, error)
        message.batch.outputs[:] = [self._reject(message.value, error)]
        message.rejected = True


async def run_in_batch(event: Any, step: Callable[[Any], Awaitable[None]]) -> None:
    """Run `step(event)`, and commit what it sends with the event, whichever task this runs in."""
    with bound(event.message.batch):
        await step(event)


def mark_idle(event: Any) -> None:
    """Mark the event's record as resting until its next try, so that a stop or a rebalance does not wait for it."""
    event.message.rests = True
    event.message.on_rest()


@contextmanager
def mark_working(event: Any) -> Iterator[None]:
    """Mark one try of a record. A stop or a rebalance waits for the record only during the try."""
    event.message.rests = False
    try:
        yield
    finally:
        mark_idle(event)
