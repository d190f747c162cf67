"""The local state of one source partition: all of its tables, its bookmarks and its deadlines in one RocksDB.

It is a cache of the changelogs: it may be lost, and is then rebuilt.
"""

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import structlog

from afterword.streams.runtime.errors import StoreFailed
from afterword.streams.runtime.options import Options, wall_clock_ms

if TYPE_CHECKING:  # imported with the first database: a worker without any saves 7 MB
    from rocksdict import Options as RocksOptions
    from rocksdict import ReadOptions, WriteBatch

log = structlog.get_logger()

RowChange = tuple[bytes, bytes | None]
"""Key and new value; None deletes the row."""
DeadlineOf = Callable[[bytes], int | None]
"""Reads the deadline from a row's encoded value: milliseconds since 1970, or None.

If it depends on more than the row, its attribute `rule` says on what: the index is rebuilt when that has changed.
"""

META = b"\0meta"
COUNTED = b"\0count"
"""The number of scheduled rows."""
RULES = b"\0rules"
"""The rules by which the rows were indexed: JSON, by table."""
DUE = b"\0due\0"
EXPIRING = b"\0exp\0"
SCHEDULED = b"\0at\0"
DEADLINE_BYTES = 8
EXPIRES = b"\1"
"""Suffix of the moment of a scheduled row whose entry is among those that expire."""
OWNER_ONLY = 0o700
"""Mode of the directories."""
AHEAD_SECONDS = 3600.0
"""A time so far in the future is from a wrong clock: the age of what it dates is not known."""
MOST_MOVES = 10_000
"""Early entries of the index that one look moves, and rows that are indexed at once: some 50 ms."""


class Expiry(int):
    """A deadline after which a row is only tidied up: the others come first, and it is not counted as scheduled."""

    def __repr__(self) -> str:
        return f"Expiry({int(self)})"


@dataclass(frozen=True)
class DatabasePosition:
    """Progress of a database in its changelogs."""

    source: int = -1
    """Next offset of the source topic; -1 before the first transaction."""
    lineage: str = ""
    """Random id that the first transaction gave to the changelog: another one means another changelog."""
    bookmarks: dict[str, int] = field(default_factory=dict)
    """Offset of the last bookmark seen in each table's changelog."""
    written_ms: int = 0
    """Time at which the database was last up to date: milliseconds since 1970."""
    source_id: str = ""
    """Id of the source topic whose records the rows were made from; empty if it is not known."""


class NoDatabase:
    """Stands in for the database of a partition whose app has no tables: only the position, in memory."""

    size_bytes = scheduled = 0

    def __init__(self) -> None:
        self.position = DatabasePosition()

    def write(self, _changes: Mapping[str, Iterable[RowChange]], position: DatabasePosition) -> None:
        self.position = position

    def next_deadline(self) -> None:
        """There is none."""

    def next_expiry(self) -> None:
        """There is none."""

    def due(self, _now_ms: int, _limit: int) -> list[tuple[str, bytes]]:
        return []

    def close(self) -> None:
        """Close nothing."""


class StateMemory:
    """Memory that all databases of a worker share: blocks that were read, and rows that no file has yet.

    However many partitions a worker has: beyond half of it the database that is written to flushes its rows, in the
    background. Nothing waits for that, because one that has no rows of its own would wait for the others.
    """

    def __init__(self, size_bytes: int) -> None:
        from rocksdict import Cache, WriteBufferManager

        self.cache = Cache(size_bytes)
        self.buffers = WriteBufferManager.new_write_buffer_manager_with_cache(size_bytes // 2, False, self.cache)


@contextmanager
def failures_named(path: Path) -> Iterator[None]:
    """Raises: StoreFailed for whatever RocksDB or the file system reports."""
    try:
        yield
    except StoreFailed:
        raise
    except Exception as error:  # rocksdict raises bare Exceptions for whatever RocksDB reports
        from rocksdict import DbClosedError

        raise StoreFailed(path=path, cause="closed" if isinstance(error, DbClosedError) else error) from error


class Database:
    """Rows of several tables, and the position they correspond to, written together or not at all.

    Raises: StoreFailed from every method that reads or writes.
    """

    def __init__(
        self,
        path: Path,
        deadlines: Mapping[str, DeadlineOf | None],
        *,
        write_buffer_bytes: int = Options.write_buffer_bytes,
        memory: StateMemory | None = None,
        clock: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.path = path
        self._deadlines = deadlines
        self.clock = clock
        self._prefixes = {table: table.encode() + b"\0" for table in deadlines}
        self._options = _rocks_options(write_buffer_bytes, memory)
        self.position = DatabasePosition()
        self.scheduled = 0
        """Approximate number of rows in the index of deadlines, without those that only expire.

        A row counts until its removed deadline has passed.
        """
        self._open()

    def _open(self) -> None:
        from rocksdict import Rdict

        with failures_named(self.path):
            private_directory(self.path)
            self._db = Rdict(str(self.path), self._options)
            raw, counted = self._db.get(META), self._db.get(COUNTED)
            if raw is None:
                self._db.put(RULES, self._rules())
        self.position = DatabasePosition(**orjson.loads(raw)) if raw else DatabasePosition()
        self.scheduled = int(counted or 0)

    def _rules(self) -> bytes:
        rules = {table: getattr(deadline_of, "rule", "") for table, deadline_of in self._deadlines.items()}
        return orjson.dumps(rules, option=orjson.OPT_SORT_KEYS)

    def reindex(self) -> Iterator[None]:
        """Index all rows if their deadlines follow other rules than when they were written, as after an upgrade.

        Reads each of them, some seconds for a million: yields between two parts, for others to go on. After a crash it
        begins again. Deadlines that became later, or are none any more, are moved when their time has come.
        """
        with failures_named(self.path):
            if self._db.get(RULES) == self._rules():
                return
        for table, deadline_of in self._deadlines.items():
            keys = self.keys(table) if deadline_of is not None else iter(())
            while part := list(islice(keys, MOST_MOVES)):
                entries = _empty_batch()
                with failures_named(self.path):
                    for key in part:
                        if (value := self.get(table, key)) is not None:
                            self._schedule(entries, table, key, value)
                    self._write(entries)
                yield
        with failures_named(self.path):
            self._db.put(RULES, self._rules())

    def close(self) -> None:
        """Close, and only log a failure: what is not in the file, as on a full disk, is in the changelog."""
        try:
            with failures_named(self.path):
                self._db.close()
        except StoreFailed as error:
            log.warning("state_close_failed", stage="state", error_type=error.error_type, problem=str(error))

    @property
    def size_bytes(self) -> int:
        """Total size of its files."""
        size = 0
        with failures_named(self.path):
            for file in self.path.iterdir():
                with suppress(FileNotFoundError):  # compacted away meanwhile
                    size += file.stat().st_size
        return size

    @property
    def age_seconds(self) -> float:
        """Time since it was last up to date; 0 when nothing was ever written, infinite after a clock far ahead."""
        written = self.position.written_ms
        age = (self.clock() - written) / 1000 if written else 0.0
        return age if age >= -AHEAD_SECONDS else math.inf

    def wipe(self) -> None:
        """Delete everything, as after the loss of the disk."""
        self.close()
        with failures_named(self.path):
            shutil.rmtree(self.path)
        self._open()

    def get(self, table: str, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(self._prefixes[table] + key)
        except Exception as error:  # rocksdict raises bare Exceptions; a context manager would cost more than the look
            raise StoreFailed(path=self.path, cause=error) from error
        return value

    def keys(self, table: str) -> Iterator[bytes]:
        prefix = self._prefixes[table]
        with failures_named(self.path):
            for raw, _ in self._scan(prefix):
                yield raw[len(prefix) :]

    def write(
        self, changes: Mapping[str, Iterable[RowChange]], position: DatabasePosition, *, as_of_ms: int | None = None
    ) -> None:
        """Apply the changes and move the position, in one atomic write.

        `as_of_ms`: time at which the database was up to date with its changelogs; by default now.
        """
        position = replace(position, written_ms=self.clock() if as_of_ms is None else as_of_ms)
        batch = _empty_batch()
        with failures_named(self.path):
            for table, rows in changes.items():
                self._put_rows(batch, table, rows)
            batch.put(META, orjson.dumps(position))
            self._write(batch)
        self.position = position

    def _write(self, batch: "WriteBatch") -> None:
        """Write the batch, and the number of rows that are scheduled then."""
        batch.put(COUNTED, b"%d" % self.scheduled)
        self._db.write(batch)

    def due(self, now_ms: int, limit: int) -> list[tuple[str, bytes]] | None:
        """Return at most `limit` keys, with their tables, whose deadline has passed; the earliest first, each once.

        Those that only expire come after all others. The index may be early, never late. An entry that differs from its
        row's deadline is moved to it; the order is known only after that, hence a second look. After a rebuild every
        entry may be early: once MOST_MOVES are moved it returns None, and is to be called again.
        """
        left = MOST_MOVES
        while left:
            moves = _empty_batch()
            with failures_named(self.path):
                found, moved = self._look(now_ms, limit, moves, left)
                if not moved:
                    return found
                self._write(moves)
            left -= moved
        return None

    def _look(
        self, now_ms: int, limit: int, moves: "WriteBatch", most_moves: int
    ) -> tuple[list[tuple[str, bytes]], int]:
        """Return due keys, and the number of entries in `moves`."""
        found: list[tuple[str, bytes]] = []
        moved = 0
        for entry, _ in chain(self._passed(DUE, now_ms), self._passed(EXPIRING, now_ms)):
            if len(found) == limit or moved == most_moves:
                break
            table, key = self._entry_row(entry)
            deadline = self._deadline(table, self.get(table, key))
            if deadline is not None and _entry_of(deadline) == entry[: len(DUE) + DEADLINE_BYTES]:
                found.append((table, key))
            else:
                self._reschedule(moves, entry, table, key, deadline)
                moved += 1
        return found, moved

    def _passed(self, prefix: bytes, now_ms: int) -> Iterator[tuple[bytes, bytes]]:
        return takewhile(lambda entry: _entry_time(entry[0]) <= now_ms, self._scan(prefix))

    def next_deadline(self) -> int | None:
        """Return the earliest time at which `due` may find something, in milliseconds since 1970.

        Without rows that only expire, which have `next_expiry`.
        """
        return self._first_time(DUE)

    def next_expiry(self) -> int | None:
        """Return the earliest time at which `due` may find a row that only expires, in milliseconds since 1970."""
        return self._first_time(EXPIRING)

    def _first_time(self, prefix: bytes) -> int | None:
        with failures_named(self.path):
            entry = next(self._scan(prefix), None)
        return None if entry is None else _entry_time(entry[0])

    def _put_rows(self, batch: "WriteBatch", table: str, rows: Iterable[RowChange]) -> None:
        prefix, with_deadlines = self._prefixes[table], self._deadlines[table] is not None
        # Of a key that comes several times, as in a replay, the last value: the index does not see what is in the batch
        for key, value in dict(rows).items():
            if value is None:
                batch.delete(prefix + key)
            else:
                batch.put(prefix + key, value)
                if with_deadlines:
                    self._schedule(batch, table, key, value)

    def _schedule(self, batch: "WriteBatch", table: str, key: bytes, value: bytes) -> None:
        # An early entry stays where it is: most deadlines move with every message, and are looked at once
        deadline = self._deadline(table, value)
        if deadline is None:
            return
        row = self._prefixes[table] + key
        scheduled = self._db.get(SCHEDULED + row)
        if scheduled is not None:
            if _moment(scheduled) <= deadline and (not _expires(scheduled) or isinstance(deadline, Expiry)):
                return
            batch.delete((EXPIRING if _expires(scheduled) else DUE) + scheduled[:DEADLINE_BYTES] + row)
            self.scheduled -= not _expires(scheduled)
        self._put_entry(batch, row, deadline)

    def _reschedule(self, batch: "WriteBatch", entry: bytes, table: str, key: bytes, deadline: int | None) -> None:
        row = self._prefixes[table] + key
        batch.delete(entry)
        self.scheduled -= entry.startswith(DUE)
        if deadline is None:
            batch.delete(SCHEDULED + row)
        else:
            self._put_entry(batch, row, deadline)

    def _put_entry(self, batch: "WriteBatch", row: bytes, deadline: int) -> None:
        expires = isinstance(deadline, Expiry)
        entry = _entry_of(deadline)
        batch.put(entry + row, b"")
        batch.put(SCHEDULED + row, entry[-DEADLINE_BYTES:] + (EXPIRES if expires else b""))
        self.scheduled += not expires

    def _entry_row(self, entry: bytes) -> tuple[str, bytes]:
        table, _, key = entry[len(DUE) + DEADLINE_BYTES :].partition(b"\0")
        return table.decode(), key

    def _deadline(self, table: str, value: bytes | None) -> int | None:
        deadline_of = self._deadlines.get(table)
        return None if value is None or deadline_of is None else deadline_of(value)

    def _scan(self, prefix: bytes, options: "ReadOptions | None" = None) -> Iterator[tuple[bytes, bytes]]:
        iterator = self._db.iter(options)
        iterator.seek(prefix)
        while iterator.valid() and (key := iterator.key()).startswith(prefix):
            yield key, iterator.value()
            iterator.next()


def private_directory(path: Path) -> None:
    """Create the directory and its missing parents for this user alone, whatever the umask. Raises: OSError."""
    for missing in reversed([at for at in (path, *path.parents) if not at.exists()]):
        missing.mkdir(OWNER_ONLY, exist_ok=True)
    path.mkdir(exist_ok=True)  # raises if it is a file


def read_position(path: Path) -> DatabasePosition:
    """Return the position of a database that is not open, without opening it for writing. Raises: StoreFailed."""
    from rocksdict import AccessType, Rdict
    from rocksdict import Options as RocksOptions

    with failures_named(path):
        database = Rdict(str(path), RocksOptions(raw_mode=True), access_type=AccessType.read_only())
        raw = database.get(META)
        database.close()
    return DatabasePosition(**orjson.loads(raw)) if raw else DatabasePosition()


def _entry_of(deadline: int) -> bytes:
    """The start of the entry: kind and moment. Both kinds are equally long."""
    return (EXPIRING if isinstance(deadline, Expiry) else DUE) + max(0, deadline).to_bytes(DEADLINE_BYTES, "big")


def _moment(scheduled: bytes) -> int:
    return int.from_bytes(scheduled[:DEADLINE_BYTES], "big")


def _expires(scheduled: bytes) -> bool:
    return len(scheduled) > DEADLINE_BYTES


def _entry_time(entry: bytes) -> int:
    return int.from_bytes(entry[len(DUE) : len(DUE) + DEADLINE_BYTES], "big")


def _empty_batch() -> "WriteBatch":
    from rocksdict import WriteBatch

    return WriteBatch(raw_mode=True)


def _read_once() -> "ReadOptions":
    """Return options for data that is read once: it must not evict other data from the cache."""
    from rocksdict import ReadOptions

    options = ReadOptions()
    options.fill_cache(False)
    return options


def _rocks_options(write_buffer_bytes: int, memory: StateMemory | None) -> "RocksOptions":
    from rocksdict import BlockBasedOptions
    from rocksdict import Options as RocksOptions

    options = RocksOptions(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_write_buffer_number(2)
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)
    if memory is not None:
        table.set_block_cache(memory.cache)
        options.set_write_buffer_manager(memory.buffers)
    options.set_block_based_table_factory(table)
    return options
