"""Snapshots: copies of partitions' rows in a folder or a bucket, from which a worker without state starts.

A snapshot only makes recovery faster. It is checked before it is used, the changelogs are replayed from its bookmarks
on, and whatever is wrong with it, or with its store, leaves the replay from the beginning.

Why a copy may be made while the rows change: its position is noted first, then rows are read, a part at a time. A row
is then as a transaction left it that was committed before it was read, because RocksDB is written after the commit.
What changed or deleted it after the position was noted, before it was read or later, is in the changelog behind the
noted bookmark. The replay applies the last of these changes, so that it ends with the same rows as one from the
beginning. What compaction has removed there by then are changes with a later one of the same key, and tombstones older
than their retention. Hence a snapshot is as old as its position, which is the time of the last commit and not of the
copying: so a worker that was frozen for a day, and copies before it notices, does not pass its old state off as new. It
puts an old snapshot in the place of a newer one, and the next recovery replays more, or all.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiokafka import TopicPartition

from afterword.streams.runtime.changelog import ReplayPace
from afterword.streams.runtime.database import AHEAD_SECONDS, Database, DatabasePosition
from afterword.streams.runtime.errors import StoreFailed, place_of
from afterword.streams.runtime.metrics import EngineMetrics
from afterword.streams.runtime.snapshot_format import Block, SnapshotDecoder, SnapshotEncoder, SnapshotUnusable
from afterword.streams.runtime.snapshot_stores import SnapshotStore

log = structlog.get_logger()

PART_BYTES = 64 * 1024
"""Bytes of rows that are read between two turns of the event loop."""
SHARE = 0.25
"""Share of the event loop that copying may take."""
TAKE_SECONDS, FILL_SECONDS = 1800.0, 600.0
"""Longest time to write a snapshot, and to read one."""
SILENT_SECONDS = 30.0
"""Longest time that a store may take for the next piece."""
LOOK_SECONDS = 10.0
RETRY_SECONDS = 600.0
FILLING = DatabasePosition()
FILLING_MS = 1
"""Time of a database that is being filled, in 1970: after a crash halfway it is too old, so that it is discarded."""
CLOSED = "closed"


class Schedule:
    """Times of the partitions' next snapshots: the first is at any moment of the first interval, to spread them."""

    def __init__(self, seconds: float, chance: Callable[[], float] = random.random) -> None:
        self._seconds = seconds
        self._chance = chance
        self._due: dict[TopicPartition, float] = {}

    def next(self, sources: Collection[TopicPartition], now: float) -> TopicPartition | None:
        """Return the one that has waited longest. `sources`: partitions that are open; others are forgotten."""
        known = self._due
        self._due = {one: known[one] if one in known else now + self._chance() * self._seconds for one in sources}
        late = [one for one in self._due if self._due[one] <= now]
        return min(late, key=lambda one: self._due[one], default=None)

    def done(self, source: TopicPartition, now: float, is_written: bool) -> None:
        self._due[source] = now + (self._seconds if is_written else min(self._seconds, RETRY_SECONDS))


@dataclass
class StateSnapshot:
    """The snapshot of one partition, as its owner writes it and a later one reads it."""

    store: SnapshotStore
    key: str
    stale_seconds: float
    metrics: EngineMetrics
    silent_seconds: float = SILENT_SECONDS
    part_bytes: int = PART_BYTES
    pace: ReplayPace = field(default_factory=lambda: ReplayPace(share=SHARE))
    """Pace of the copying."""

    async def take(self, database: Database, tables: Collection[str]) -> bool:
        """Copy the rows to the store; return whether that is done, or there is nothing to do."""
        began = time.monotonic()
        if not database.position.lineage:
            return True
        error = await self._failure_of(self._write(database, tables), TAKE_SECONDS)
        if isinstance(error, StoreFailed) and error.cause == CLOSED:  # the partition has moved meanwhile
            return False
        self.metrics.snapshot_taken(error is None)
        if error is not None:
            log.warning("snapshot_failed", snapshot=self.key, stage="snapshot", error_type=_name_of(error))
            return False
        log.info("snapshot_written", snapshot=self.key, seconds=round(time.monotonic() - began, 3))
        return True

    async def _write(self, database: Database, tables: Collection[str]) -> None:
        async with aclosing(self._copied(database, tables)) as pieces:
            await self.store.write(self.key, pieces)

    async def _copied(self, database: Database, tables: Collection[str]) -> AsyncGenerator[bytes, None]:
        encoder = SnapshotEncoder()
        yield encoder.head(database.position)
        for table in tables:
            last: bytes | None = None
            while True:
                async with self.pace.turn():
                    rows = database.rows_after(table, last, self.part_bytes)
                    piece = encoder.rows(table, rows) if rows else b""
                if not rows:
                    break
                yield piece
                last = rows[-1][0]
        yield encoder.end()

    async def fill(
        self, database: Database, tables: Collection[str], filled: Callable[[int], None], pace: ReplayPace
    ) -> int:
        """Fill a database that has no usable state. `filled` is given the number of rows so far.

        Returns the number of rows that were written, also if they had to be discarded: then the database is empty.
        Raises: StoreFailed if it cannot be emptied.
        """
        if database.position.lineage and database.age_seconds <= self.stale_seconds:
            return 0
        if database.position != DatabasePosition():
            database.wipe()
        began, filling = time.monotonic(), _Filling(self, database, tables, filled, pace)
        error = await self._failure_of(filling.run(), FILL_SECONDS)
        if error is None:
            self.metrics.snapshot_read("restored")
            seconds, age = round(time.monotonic() - began, 3), round(database.age_seconds)
            log.info("snapshot_restored", snapshot=self.key, rows=filling.rows, seconds=seconds, age_seconds=age)
            return filling.rows
        if database.position != DatabasePosition():
            database.wipe()
        if isinstance(error, FileNotFoundError):
            self.metrics.snapshot_read("missing")
            log.info("snapshot_missing", snapshot=self.key)
        else:
            self.ignore(_name_of(error))
        return filling.rows

    async def _failure_of(self, work: Awaitable[None], seconds: float) -> Exception | None:
        """Return what the work failed with: it costs a snapshot. TimeoutError if it took longer than it may."""
        failures: tuple[type[Exception], ...] = (*self.store.errors, SnapshotUnusable, StoreFailed, TimeoutError)
        try:
            async with asyncio.timeout(seconds):
                await work
        except failures as error:
            return error
        return None

    def ignore(self, reason: str) -> None:
        """Tell that the changelogs are replayed from their beginning instead."""
        self.metrics.snapshot_read("ignored")
        log.warning("snapshot_ignored", snapshot=self.key, stage="recover", error_type=reason)

    def check(self, position: DatabasePosition, tables: Collection[str], now_ms: int) -> None:
        """Check the head of a snapshot. Its lineage is compared by the replay. Raises: SnapshotUnusable."""
        age_seconds = (now_ms - position.written_ms) / 1000
        if not -AHEAD_SECONDS <= age_seconds <= self.stale_seconds:
            raise SnapshotUnusable("too_old" if age_seconds > 0 else "from_the_future")
        if not position.lineage or position.bookmarks.keys() != set(tables):
            raise SnapshotUnusable("other_tables")


class _Filling:
    """Reads a snapshot into a database. Its position is set last: before, the state counts as too old to be used."""

    def __init__(
        self,
        snapshot: StateSnapshot,
        database: Database,
        tables: Collection[str],
        filled: Callable[[int], None],
        pace: ReplayPace,
    ) -> None:
        self._snapshot = snapshot
        self._database = database
        self._tables = tables
        self._filled = filled
        self._pace = pace
        self._position = DatabasePosition()
        self.rows = 0

    async def run(self) -> None:
        """Raises: SnapshotUnusable, TimeoutError, StoreFailed, and whatever the store raises."""
        decoder = SnapshotDecoder()
        async with aclosing(self._snapshot.store.read(self._snapshot.key)) as pieces:
            while (piece := await self._next(pieces)) is not None:
                blocks = decoder.feed(piece)
                while await self._has_used(blocks):
                    continue
        decoder.close()
        self._database.write({}, self._position, as_of_ms=self._position.written_ms)

    async def _next(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        async with asyncio.timeout(self._snapshot.silent_seconds):
            return await anext(pieces, None)

    async def _has_used(self, blocks: Iterator[DatabasePosition | Block]) -> bool:
        """Use the next block; False if there is none."""
        async with self._pace.turn():
            block = next(blocks, None)
            if block is not None:
                self._use(block)
        await asyncio.sleep(0)
        return block is not None

    def _use(self, block: DatabasePosition | Block) -> None:
        database = self._database
        if isinstance(block, DatabasePosition):
            self._snapshot.check(block, self._tables, database.clock())
            self._position = block
            return
        if block.table not in self._tables:
            raise SnapshotUnusable("other_tables")
        database.write({block.table: block.rows}, FILLING, as_of_ms=FILLING_MS)
        self.rows += len(block.rows)
        self._filled(self.rows)


async def take_regularly(app: Any) -> None:
    """Take the snapshots that are due, one partition at a time, of partitions that are open."""
    if app.snapshots is None:
        return
    options, schedule = app.engine, Schedule(app.engine.snapshot_seconds)
    taken: dict[TopicPartition, DatabasePosition] = {}
    while True:
        await asyncio.sleep(min(LOOK_SECONDS, options.snapshot_seconds / 4))
        sessions = app.consumer.sessions()
        source = schedule.next(sessions, time.monotonic())
        if source is None:
            continue
        database, tables = sessions[source].database, sessions[source].tables
        position = database.position
        if position != taken.get(source):
            if is_written := await app.consumer.snapshot(source).take(database, tables):
                taken[source] = position
        else:
            is_written = True
        schedule.done(source, time.monotonic(), is_written)


def _name_of(error: Exception) -> str:
    return error.reason if isinstance(error, SnapshotUnusable) else place_of(error)
