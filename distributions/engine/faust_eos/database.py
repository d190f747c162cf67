"""The local state of one source partition: all of its tables, its bookmarks and its deadlines in one RocksDB.

It is a cache of the changelogs: it may be lost, and is then rebuilt.
"""

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import structlog

from faust_eos.errors import StoreFailed
from faust_eos.options import wall_clock_ms

if TYPE_CHECKING:  # imported with the first database, which saves 7 MB in a worker that has none
    from rocksdict import Options as RocksOptions
    from rocksdict import WriteBatch

log = structlog.get_logger()

RowChange = tuple[bytes, bytes | None]
"""Key and new value; None deletes the row."""
DeadlineOf = Callable[[bytes], int | None]
"""Reads the deadline from a row's encoded value and nothing else: milliseconds since 1970, or None."""

META = b"\0meta"
COUNTED = b"\0count"
"""The number of scheduled rows."""
DUE, IDLE = b"\0due\0", b"\0idl\0"
"""Kinds of entries in the index of deadlines. An entry is its kind, a time of `TIME_BYTES`, and the row."""
SCHEDULED = b"\0at\0"
"""Holds the kind and the time of a row's entry."""
TIME_BYTES = 8
ENTRY_BYTES = len(DUE) + TIME_BYTES
STATE_MEMORY_BYTES = 64 * 1024 * 1024
"""RocksDB's memory for all partitions of a worker together: its cache, including the rows that are in no file yet. By
default RocksDB takes far more, for each partition."""
WRITE_BUFFER_BYTES = 4 * 1024 * 1024
"""Bytes of one partition's rows that are collected before they are written to a file; fewer if many partitions share
STATE_MEMORY_BYTES."""
OWNER_ONLY = 0o700
"""File mode of the directories."""
AHEAD_SECONDS = 3600.0
"""A timestamp further in the future than this comes from a wrong clock, so it says nothing about age."""
MOST_MOVES = 10_000
"""Maximum number of early index entries that one pass moves: some 50 ms of work."""


class IdleSince(int):
    """The deadline of a row that only needs tidying up: `Options.tidy_after_ms` after this time, or never if that is 0.

    Real deadlines come first, and such a row is not counted as scheduled.
    """


@dataclass(frozen=True)
class DatabasePosition:
    """Progress of a database in its changelogs."""

    source: int = -1
    """Next offset of the source topic; −1 before the first transaction."""
    lineage: str = ""
    """Random id that the first transaction gave the changelog; a different id means a different changelog."""
    bookmarks: dict[str, int] = field(default_factory=dict)
    """Offset of the last bookmark seen in each table's changelog."""
    written_ms: int = 0
    """Time at which the database was last up to date: milliseconds since 1970."""
    source_id: str = ""
    """Id of the source topic that the rows were made from; empty if it is not known."""


class NoDatabase:
    """Stands in for the database of a partition whose app has no tables; keeps only the position, in memory."""

    size_bytes = scheduled = 0

    def __init__(self) -> None:
        self.position = DatabasePosition()

    def write(self, _changes: Mapping[str, Iterable[RowChange]], position: DatabasePosition) -> None:
        self.position = position

    def next_deadline(self) -> None:
        """There is none."""

    def next_tidying(self) -> None:
        """There is none."""

    def due(self, _now_ms: int, _limit: int) -> list[tuple[str, bytes]]:
        return []

    def close(self) -> None: ...


class StateMemory:
    """Memory that all databases of a worker share: blocks that were read, and rows that are in no file yet.

    Its size does not depend on the number of partitions. When rows take more than half of it, the database that is
    being written to flushes its rows in the background. Writes do not wait for the flush, because a database without
    rows of its own would have to wait for the others.
    """

    def __init__(self, size_bytes: int) -> None:
        from rocksdict import Cache, WriteBufferManager

        self.cache = Cache(size_bytes)
        self.buffers = WriteBufferManager.new_write_buffer_manager_with_cache(size_bytes // 2, False, self.cache)


@contextmanager
def failures_named(path: Path) -> Iterator[None]:
    """Turn whatever RocksDB or the file system reports into StoreFailed, which names the path."""
    try:
        yield
    except StoreFailed:
        raise
    except Exception as error:  # rocksdict raises bare Exceptions for whatever RocksDB reports
        from rocksdict import DbClosedError

        raise StoreFailed(path=path, cause="closed" if isinstance(error, DbClosedError) else error) from error


class Database:
    """Rows of several tables, and the position that they correspond to, written together or not at all.

    Every method that reads or writes raises StoreFailed.
    """

    def __init__(
        self,
        path: Path,
        deadlines: Mapping[str, DeadlineOf | None],
        *,
        memory: StateMemory | None = None,
        tidy_after_ms: int = 0,
        clock: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`tidy_after_ms` is how long after an `IdleSince` its row is due; 0 means never."""
        self.path = path
        self._deadlines = deadlines
        self._tidy_after_ms = tidy_after_ms
        self.clock = clock
        self._prefixes = {table: table.encode() + b"\0" for table in deadlines}
        self._options = _rocks_options(memory)
        self.position = DatabasePosition()
        self.scheduled = 0
        """Approximate number of rows in the index of deadlines, except the idle ones.

        A deleted row counts until the deadline that it had has passed.
        """
        self._open()

    def _open(self) -> None:
        from rocksdict import Rdict

        with failures_named(self.path):
            private_directory(self.path)
            self._db = Rdict(str(self.path), self._options)
            raw, counted = self._db.get(META), self._db.get(COUNTED)
        self.position = DatabasePosition(**orjson.loads(raw)) if raw else DatabasePosition()
        self.scheduled = int(counted or 0)

    def close(self) -> None:
        """Close the database. A failure is only logged: what did not reach the file is in the changelog."""
        try:
            with failures_named(self.path):
                self._db.close()
        except StoreFailed as error:
            log.warning("state_close_failed", stage="state", error_type=error.error_type, problem=str(error))

    @property
    def size_bytes(self) -> int:
        """Total size of the database's files."""
        size = 0
        with failures_named(self.path):
            for file in self.path.iterdir():
                with suppress(FileNotFoundError):  # compacted away in the meantime
                    size += file.stat().st_size
        return size

    @property
    def age_seconds(self) -> float:
        """Seconds since it was last up to date; 0 if it never was, and infinity if the clock was far ahead at that
        time."""
        written = self.position.written_ms
        age = (self.clock() - written) / 1000 if written else 0.0
        return age if age >= -AHEAD_SECONDS else math.inf

    def wipe(self) -> None:
        """Delete everything, as if the disk had been lost."""
        self.close()
        with failures_named(self.path):
            shutil.rmtree(self.path)
        self._open()

    def get(self, table: str, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(self._prefixes[table] + key)
        except Exception as error:  # rocksdict raises bare Exceptions; a context manager would be slow here
            raise StoreFailed(path=self.path, cause=error) from error
        return value

    def write(
        self, changes: Mapping[str, Iterable[RowChange]], position: DatabasePosition, *, as_of_ms: int | None = None
    ) -> None:
        """Apply the changes and move the position in one atomic write.

        `as_of_ms` is the time at which the database was up to date with its changelogs; the default is now.
        """
        position = replace(position, written_ms=self.clock() if as_of_ms is None else as_of_ms)
        batch = _empty_batch()
        with failures_named(self.path):
            for table, rows in changes.items():
                prefix, with_deadlines = self._prefixes[table], self._deadlines[table] is not None
                # A replay may have a key several times. Only its last value is written, as the index cannot see the
                # batch's own entries
                for key, value in dict(rows).items():
                    if value is None:
                        batch.delete(prefix + key)
                        continue
                    batch.put(prefix + key, value)
                    if with_deadlines:
                        self._schedule(batch, table, key, value)
            batch.put(META, orjson.dumps(position))
            self._write(batch)
        self.position = position

    def _write(self, batch: "WriteBatch") -> None:
        """Write the batch, together with the number of scheduled rows."""
        batch.put(COUNTED, b"%d" % self.scheduled)
        self._db.write(batch)

    def due(self, now_ms: int, limit: int) -> list[tuple[str, bytes]] | None:
        """Return at most `limit` keys, with their tables, whose deadlines have passed: the earliest first, each once.

        Idle rows come after all others. An index entry may be too early but never too late. An entry that
        differs from its row's deadline is moved to it, and since the order is known only after that, the index is read
        again. After a rebuild every entry may be too early: once `MOST_MOVES` entries were moved, this returns None and
        must be called again.
        """
        left = MOST_MOVES
        while left:
            rows: list[tuple[str, bytes]] = []
            moves, moved = _empty_batch(), 0
            with failures_named(self.path):
                idle = self._passed(IDLE, now_ms - self._tidy_after_ms) if self._tidy_after_ms else ()
                for entry in chain(self._passed(DUE, now_ms), idle):
                    if len(rows) == limit or moved == left:
                        break
                    row = entry[ENTRY_BYTES:]
                    name, _, key = row.partition(b"\0")
                    table = name.decode()
                    deadline = self._deadline(table, self.get(table, key))
                    if deadline is not None and _entry_of(deadline) == entry[:ENTRY_BYTES]:
                        rows.append((table, key))
                        continue
                    self._remove_entry(moves, row, entry[:ENTRY_BYTES])
                    if deadline is not None:
                        self._put_entry(moves, row, _entry_of(deadline))
                    moved += 1
                if not moved:
                    return rows
                self._write(moves)
            left -= moved
        return None

    def _passed(self, prefix: bytes, now_ms: int) -> Iterator[bytes]:
        return takewhile(lambda entry: _entry_time(entry) <= now_ms, self._scan(prefix))

    def next_deadline(self) -> int | None:
        """Return the earliest time at which `due` may find something, in milliseconds since 1970.

        Idle rows do not count here; see `next_tidying`.
        """
        return self._first_time(DUE)

    def next_tidying(self) -> int | None:
        """Return the earliest time at which `due` may find an idle row, in milliseconds since 1970."""
        first = self._first_time(IDLE) if self._tidy_after_ms else None
        return None if first is None else first + self._tidy_after_ms

    def _first_time(self, prefix: bytes) -> int | None:
        with failures_named(self.path):
            entry = next(self._scan(prefix), None)
        return None if entry is None else _entry_time(entry)

    def _schedule(self, batch: "WriteBatch", table: str, key: bytes, value: bytes) -> None:
        # An entry that is too early stays where it is: deadlines move with most messages but are looked at only once
        deadline = self._deadline(table, value)
        if deadline is None:
            return
        row, entry = self._prefixes[table] + key, _entry_of(deadline)
        scheduled = self._db.get(SCHEDULED + row)
        if scheduled is not None:
            kind = len(DUE)
            if scheduled[:kind] <= entry[:kind] and scheduled[kind:] <= entry[kind:]:
                return
            self._remove_entry(batch, row, scheduled)
        self._put_entry(batch, row, entry)

    def _put_entry(self, batch: "WriteBatch", row: bytes, entry: bytes) -> None:
        batch.put(entry + row, b"")
        batch.put(SCHEDULED + row, entry)
        self.scheduled += entry.startswith(DUE)

    def _remove_entry(self, batch: "WriteBatch", row: bytes, entry: bytes) -> None:
        batch.delete(entry + row)
        batch.delete(SCHEDULED + row)
        self.scheduled -= entry.startswith(DUE)

    def _deadline(self, table: str, value: bytes | None) -> int | None:
        deadline_of = self._deadlines.get(table)
        return None if value is None or deadline_of is None else deadline_of(value)

    def _scan(self, prefix: bytes) -> Iterator[bytes]:
        iterator = self._db.iter()
        iterator.seek(prefix)
        while iterator.valid() and (key := iterator.key()).startswith(prefix):
            yield key
            iterator.next()


def private_directory(path: Path) -> None:
    """Create the directory and its missing parents for this user alone, whatever the umask. Raises: OSError."""
    for missing in reversed([at for at in (path, *path.parents) if not at.exists()]):
        missing.mkdir(OWNER_ONLY, exist_ok=True)
    path.mkdir(exist_ok=True)  # raises if the path is a file


def _entry_of(deadline: int) -> bytes:
    """Return the start of an index entry: its kind and time."""
    return (IDLE if isinstance(deadline, IdleSince) else DUE) + max(0, deadline).to_bytes(TIME_BYTES, "big")


def _entry_time(entry: bytes) -> int:
    return int.from_bytes(entry[len(DUE) : ENTRY_BYTES], "big")


def _empty_batch() -> "WriteBatch":
    from rocksdict import WriteBatch

    return WriteBatch(raw_mode=True)


def _rocks_options(memory: StateMemory | None) -> "RocksOptions":
    from rocksdict import BlockBasedOptions
    from rocksdict import Options as RocksOptions

    options = RocksOptions(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)
    if memory is not None:
        table.set_block_cache(memory.cache)
        options.set_write_buffer_manager(memory.buffers)
    options.set_block_based_table_factory(table)
    return options
