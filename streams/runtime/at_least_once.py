"""A source partition processed at least once: many records at a time, the lowest unfinished offset is committed."""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from faust.types.tuples import TP, ConsumerMessage

from afterword.streams.runtime.batch import NOT_DONE, RawSchema
from afterword.streams.runtime.errors import FATAL, TRANSIENT
from afterword.streams.runtime.lag import Work
from afterword.streams.runtime.positions import readable
from afterword.streams.runtime.session import check_order
from afterword.streams.runtime.watchdog import Mark

log = structlog.get_logger()

POLL_MS = 1000
LAST_COMMIT_SECONDS = 3.0
RETRY_SECONDS = 1.0


Hold = Callable[[Any], Awaitable[None]]
"""Given an aiokafka record, returns when the agent may have it."""


class AtLeastOnce(RawSchema):
    """Records one by one, many at a time: `stream.noack()`, and `event.ack()` when a record is done. No tables.

    The value of an event is the raw aiokafka record. `max_in_flight` overrides the engine's for this topic. `hold` is
    awaited before a record is handed over, for as long as it wants: no later record of the partition overtakes it, the
    watchdog does not count that time, and a rebalance or a stop cancels it at once.
    """

    def __init__(self, *args: Any, max_in_flight: int | None = None, hold: Hold | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_in_flight = max_in_flight
        self.hold = hold


class ConcurrentMessage(ConsumerMessage):
    """Faust message of one record of many; the agent calls `event.ack()` when it is done with it."""

    __slots__ = ("on_done",)

    def __init__(self, on_done: Callable[[int], None], *args: Any, **kwargs: Any) -> None:
        self.on_done = on_done
        super().__init__(*args, **kwargs)

    def on_final_ack(self, consumer: Any) -> bool:  # noqa: ARG002 – the signature is Faust's
        setattr(self, "acked", True)  # noqa: B010 – a slot of Faust's, which its types do not show
        if self.tracked and not isinstance(sys.exc_info()[1], NOT_DONE):  # what Faust skipped was not done
            self.on_done(self.offset)
        return True


class AtLeastOncePartition:
    """Feeds an agent with slow concurrent handlers and no tables."""

    session = None

    def __init__(self, consumer: Any, source: TopicPartition, schema: AtLeastOnce | None = None) -> None:
        self._consumer = consumer
        self._app = consumer.app
        self._options = consumer.app.engine
        self._hold = schema and schema.hold
        self._most = int((schema and schema.max_in_flight) or self._options.max_in_flight)
        self._holding = False
        """A record was read that the agent may not have yet."""
        self._source = source
        self._tp = TP(*source)
        self._where = f"{source.topic}-{source.partition}"
        self._in_flight: dict[int, ConcurrentMessage] = {}
        self._next = -1
        self._committed = -1
        self._last_ms: int | None = None
        self._changed = asyncio.Event()
        self.last_error = ""
        """Class of the last error of a fetch or a commit; empty after the next commit."""
        self.task = asyncio.create_task(self._run(), name=f"partition {self._where}")
        self.task.add_done_callback(consumer.on_partition_exit)

    @property
    def ready(self) -> bool:
        return self._next >= 0

    @property
    def holds(self) -> bool:
        """True if its records are held back on purpose."""
        return self._hold is not None

    def work(self) -> Work:
        oldest = self._in_flight.get(self._lowest)
        return Work(self._lowest, oldest and int(oldest.timestamp * 1000), self._last_ms)

    async def to_do(self, end: int) -> dict[str, Mark]:
        """Return the marks of unfinished work, for the watchdog. `end`: where the source ends."""
        if not self.ready:
            return {f"{self._where} does not open": Mark()}
        found: dict[str, Mark] = {}
        if self._in_flight:  # the agent may be busy with records of other partitions
            found[f"records of {self._where} are not finished"] = Mark(self._consumer.handled, handling=True)
        if self._lowest > self._committed:
            found[f"nothing is committed of {self._where}"] = Mark(self._committed)
        if self._free and not self._holding and await self._consumer.kafka.position(self._source) < end:
            found[f"nothing is read of {self._where}"] = Mark(self._next)
        return found

    async def stop(self, within_seconds: float) -> None:
        """Stop fetching, wait for the records that the agent has begun, commit the finished ones."""
        self.task.cancel()
        await asyncio.wait([self.task])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                await self._begun_are_finished()
        with contextlib.suppress(KafkaError, TimeoutError):  # replayed at worst
            async with asyncio.timeout(LAST_COMMIT_SECONDS):
                await self._commit()

    async def _begun_are_finished(self) -> None:
        while any(message.tracked for message in self._in_flight.values()):
            self._changed.clear()
            await self._changed.wait()

    async def _run(self) -> None:
        committer = asyncio.create_task(self._commit_regularly())
        try:
            while True:
                try:
                    await self._fetch()
                except FATAL:
                    raise
                except TRANSIENT as error:
                    self.last_error = name = type(error).__name__
                    log.warning("fetching_restarted", partition=self._where, stage="engine", error_type=name)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            committer.cancel()
            await asyncio.wait([committer])

    async def _fetch(self) -> None:
        await self._seek()
        while True:
            await self._room()
            got = await self._consumer.kafka.getmany(self._source, timeout_ms=POLL_MS, max_records=self._free)
            for records in got.values():
                check_order(self._source, records[0].offset, self._next)
                for record in records:
                    await self._held_back(record)
                    await self._deliver(record)
            # past markers of transactions, too: else one that expires after the last record looks like a loss
            self._next = max(self._next, await self._consumer.kafka.position(self._source))

    async def _held_back(self, record: Any) -> None:
        if self._hold is not None:
            self._holding = True
            try:
                await self._hold(record)
            finally:
                self._holding = False

    async def _seek(self) -> None:
        """Seek the first record that was not handed over. Raises: SourceReplaced, KafkaError, TimeoutError."""
        kafka, opening, position = self._consumer.kafka, not self.ready, self._next
        if opening:
            committed = await kafka.committed(self._source)
            position = -1 if committed is None else int(committed)
        start = await readable(kafka, self._source, position, self._app.engine_metrics)
        kafka.seek(self._source, start)
        if opening:
            kafka.resume(self._source)
            self._committed = position if position >= 0 else start  # what expired is committed, to be counted once
        self._next = start

    async def _room(self) -> None:
        while self._free <= 0:
            self._changed.clear()
            await self._changed.wait()

    @property
    def _free(self) -> int:
        """Number of records that the agent may have in addition."""
        return self._most - len(self._in_flight)

    @property
    def _lowest(self) -> int:
        """Offset below which every record is finished."""
        return min(self._in_flight, default=self._next)

    async def _deliver(self, record: Any) -> None:
        message = ConcurrentMessage(
            self._finished,
            record.topic,
            record.partition,
            record.offset,
            record.timestamp / 1000,
            record.timestamp_type,
            record.headers,
            record.key,
            record,
            record.checksum,
            0,
            0,
            self._tp,
            generation_id=self._app.consumer_generation_id,
        )
        self._in_flight[record.offset] = message
        self._next, self._last_ms = record.offset + 1, record.timestamp
        await self._consumer.callback(message)

    def _finished(self, offset: int) -> None:
        self._in_flight.pop(offset, None)
        self._consumer.handled += 1
        self._changed.set()

    async def _commit(self) -> None:
        lowest = self._lowest
        if lowest > self._committed:
            await self._consumer.kafka.commit({self._source: lowest})
            self._committed, self.last_error = lowest, ""

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._options.commit_interval_seconds)
            try:
                await self._commit()
            except TRANSIENT as error:  # a rebalance, or the broker is down: replayed at worst
                self.last_error = name = type(error).__name__
                log.warning("commit_failed", partition=self._where, stage="commit", error_type=name)
