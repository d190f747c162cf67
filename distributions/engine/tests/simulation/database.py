"""A partition's local state in memory, on a disk that survives its processes."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from faust_eos.database import AHEAD_SECONDS, DatabasePosition, DeadlineOf, IdleSince, RowChange
from faust_eos.errors import StoreFailed
from faust_eos.options import wall_clock_ms

Row = tuple[str, bytes]
"""Table and key."""


@dataclass
class Files:
    """The files below one path."""

    rows: dict[Row, bytes] = field(default_factory=dict)
    position: DatabasePosition = field(default_factory=DatabasePosition)
    open: bool = False

    def copy(self) -> "Files":
        """Copy the files, as a backup does and as a process leaves them when it dies."""
        return Files(dict(self.rows), self.position)


Disk = dict[Path, Files]


class MemoryDatabase:
    """Keeps the contract of `Database`; every search for deadlines scans all rows. Raises: StoreFailed."""

    def __init__(
        self,
        path: Path,
        deadlines: Mapping[str, DeadlineOf | None],
        *,
        disk: Disk,
        tidy_after_ms: int = 0,
        clock: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.path = path
        self._deadlines = deadlines
        self.clock = clock
        self._disk = disk
        self._tidy_after_ms = tidy_after_ms
        self._files = disk.setdefault(path, Files())
        if self._files.open:
            raise StoreFailed(path=path, cause="open elsewhere")
        self._files.open = True

    @property
    def position(self) -> DatabasePosition:
        return self._files.position

    def close(self) -> None:
        self._files.open = False

    @property
    def age_seconds(self) -> float:
        """Return the time since it was last up to date; 0 if it never was, and infinity if the clock was far ahead at
        that time."""
        written = self.position.written_ms
        age = (self.clock() - written) / 1000 if written else 0.0
        return age if age >= -AHEAD_SECONDS else math.inf

    def wipe(self) -> None:
        """Delete everything, as after the loss of the disk."""
        self._files = self._disk[self.path] = Files(open=True)

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._files.rows.get((table, key))

    def keys(self, table: str) -> Iterator[bytes]:
        return iter(sorted(key for name, key in self._files.rows if name == table))

    def write(
        self, changes: Mapping[str, Iterable[RowChange]], position: DatabasePosition, *, as_of_ms: int | None = None
    ) -> None:
        """Apply the changes and move the position in one atomic write. `as_of_ms` is the time at which the database was
        up to date with its changelogs; the default is now.
        """
        if not self._files.open:
            raise StoreFailed(path=self.path, cause="closed")
        for table, rows in changes.items():
            for key, value in rows:
                self._put((table, key), value)
        self._files.position = replace(position, written_ms=self.clock() if as_of_ms is None else as_of_ms)

    def due(self, now_ms: int, limit: int) -> list[Row]:
        """Return up to `limit` keys whose deadline has passed, with their tables, each once and the earliest first.
        Idle ones come last.
        """
        return [row for idle in (False, True) for at, row in self._scheduled(idle) if at <= now_ms][:limit]

    def next_deadline(self) -> int | None:
        """Return the next time at which `due` will find something, in milliseconds since 1970."""
        return next((deadline for deadline, _ in self._scheduled()), None)

    def next_tidying(self) -> int | None:
        """Return the next time at which `due` will find an idle row, in milliseconds since 1970."""
        return next((deadline for deadline, _ in self._scheduled(idle=True)), None)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self._files.rows.values()))

    @property
    def scheduled(self) -> int:
        """Return the number of rows that have a deadline."""
        return len(self._scheduled())

    def _put(self, row: Row, value: bytes | None) -> None:
        if value is None:
            self._files.rows.pop(row, None)
        else:
            self._files.rows[row] = value

    def _scheduled(self, idle: bool = False) -> list[tuple[int, Row]]:
        if idle and not self._tidy_after_ms:
            return []
        found = []
        for row, value in self._files.rows.items():
            deadline_of = self._deadlines.get(row[0])
            deadline = None if deadline_of is None else deadline_of(value)
            if deadline is not None and isinstance(deadline, IdleSince) == idle:
                found.append((max(0, deadline) + idle * self._tidy_after_ms, row))
        return sorted(found)
