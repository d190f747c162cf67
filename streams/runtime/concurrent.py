"""One source partition, at least once: many records in the agent's hands, the lowest unfinished one is committed."""

import asyncio
import contextlib
from typing import Any

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError
from faust.types.tuples import TP

from afterword.streams.runtime.lag import Work
from afterword.streams.runtime.messages import ConcurrentMessage
from afterword.streams.runtime.partition import FATAL, PASSING
from afterword.streams.runtime.schema import AtLeastOnce
from afterword.streams.runtime.session import check_order
from afterword.streams.runtime.watchdog import Mark

log = structlog.get_logger()

POLL_MS = 1000
LAST_COMMIT_SECONDS = 3.0
RETRY_SECONDS = 1.0


class AtLeastOncePartition:
    """For an agent with slow concurrent handlers and no tables."""

    session = None

    def __init__(self, consumer: Any, source: TopicPartition, schema: AtLeastOnce | None = None) -> None:
        self._consumer = consumer
        self._app = consumer.app
        self._options = consumer.app.engine
        self._hold = schema and schema.hold
        self._most = int((schema and schema.max_in_flight) or self._options.max_in_flight)
        self._holding = False
        """A record has been read that the agent may not have yet."""
        self._source = source
        self._tp = TP(*source)
        self._where = f"{source.topic}-{source.partition}"
        self._in_flight: dict[int, ConcurrentMessage] = {}
        self._next = -1
        self._committed = -1
        self._last_ms: int | None = None
        self._changed = asyncio.Event()
        self.trouble = ""
        """Why it fetched or committed nothing last."""
        self.task = asyncio.create_task(self._run(), name=f"partition {self._where}")
        self.task.add_done_callback(consumer.on_partition_exit)

    @property
    def ready(self) -> bool:
        return self._next >= 0

    @property
    def holds(self) -> bool:
        """Its records wait on purpose."""
        return self._hold is not None

    def work(self) -> Work:
        oldest = self._in_flight.get(self._lowest)
        return Work(self._lowest, oldest and int(oldest.timestamp * 1000), self._last_ms)

    async def to_do(self, end: int) -> dict[str, Mark]:
        """For the watchdog; `end`: where the source ends."""
        if not self.ready:
            return {f"{self._where} does not open": Mark()}
        found: dict[str, Mark] = {}
        if self._in_flight:  # whoever shares the work with other partitions may be at theirs
            found[f"records of {self._where} are not finished"] = Mark(self._consumer.handled, handling=True)
        if self._lowest > self._committed:
            found[f"nothing is committed of {self._where}"] = Mark(self._committed)
        if self._free and not self._holding and await self._consumer.kafka.position(self._source) < end:
            found[f"nothing is read of {self._where}"] = Mark(self._next)
        return found

    async def stop(self, within_seconds: float) -> None:
        """Stops fetching, waits for what the agent has begun, commits what is finished."""
        self.task.cancel()
        await asyncio.wait([self.task])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                await self._begun_are_done()
        with contextlib.suppress(KafkaError, TimeoutError):  # replayed at worst
            async with asyncio.timeout(LAST_COMMIT_SECONDS):
                await self._commit()

    async def _begun_are_done(self) -> None:
        while any(message.tracked for message in self._in_flight.values()):
            self._changed.clear()
            await self._changed.wait()

    async def _run(self) -> None:
        saver = asyncio.create_task(self._save_regularly())
        try:
            while True:
                try:
                    await self._fetch()
                except (*FATAL, OffsetOutOfRangeError):
                    raise
                except PASSING as error:
                    self.trouble = name = type(error).__name__
                    log.warning("fetching starts over", partition=self._where, stage="engine", error_type=name)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            saver.cancel()
            await asyncio.wait([saver])

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

    async def _held_back(self, record: Any) -> None:
        if self._hold is not None:
            self._holding = True
            try:
                await self._hold(record)
            finally:
                self._holding = False

    async def _seek(self) -> None:
        kafka = self._consumer.kafka
        if self._next >= 0:  # starting over: what was read and not handed over is read again
            kafka.seek(self._source, self._next)
            return
        committed = await kafka.committed(self._source)
        first = (await kafka.beginning_offsets([self._source]))[self._source]
        kafka.seek(self._source, max(first, committed or 0))
        kafka.resume(self._source)
        self._next = self._committed = max(first, committed or 0)

    async def _room(self) -> None:
        while self._free <= 0:
            self._changed.clear()
            await self._changed.wait()

    @property
    def _free(self) -> int:
        """How many more records the agent may have in hand."""
        return self._most - len(self._in_flight)

    @property
    def _lowest(self) -> int:
        """Up to here everything is finished."""
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
            self._committed, self.trouble = lowest, ""

    async def _save_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._options.commit_interval_seconds)
            try:
                await self._commit()
            except PASSING as error:  # a rebalance, or the broker is away: replayed at worst
                self.trouble = name = type(error).__name__
                log.warning("offsets not committed yet", partition=self._where, stage="commit", error_type=name)
