"""The window of a partition, which decides, without I/O, which record may be handed over next, and its progress.

It reaches from the first unfinished record to the next one to read. Records with the same key are handed over one after
the other; while one of them is being handled, the others wait, and records with other keys overtake them. Only a few
waiting records are kept in memory. For the rest the window keeps the offset, and they are read again when their turn
comes.

The group's committed offset is that of the first unfinished record. The commit's metadata encodes the offsets that are
finished beyond it as a bitmap, as in Confluent's parallel consumer.
"""

import base64
import sys
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

PREFIX = "eos1."
CHECKSUM_CHARACTERS = 8


@dataclass(frozen=True)
class Progress:
    """Every record below `offset` is finished, the one at `offset` is not, and those at `beyond` are."""

    offset: int
    beyond: frozenset[int] = frozenset()

    def covers(self, offset: int) -> bool:
        return offset < self.offset or offset in self.beyond

    def metadata(self) -> str:
        """Encode `beyond`. If it is empty, so is the result, as in a plain commit.

        Its length depends on how far the last finished offset is from `offset`, not on how many are finished: see
        `reach`.
        """
        if not self.beyond:
            return ""
        bitmap = bytearray((max(self.beyond) - self.offset - 1) // 8 + 1)
        for offset in self.beyond:
            bitmap[(offset - self.offset - 1) // 8] |= 1 << (offset - self.offset - 1) % 8
        # a tool that moves the group's offset may leave the metadata as it was, so the checksum includes the offset
        checksum = zlib.crc32(bitmap, zlib.crc32(str(self.offset).encode()))
        return f"{PREFIX}{checksum:08x}" + base64.urlsafe_b64encode(bitmap).decode().rstrip("=")

    @classmethod
    def read(cls, offset: int, metadata: str) -> "Progress":
        """Decode what was committed.

        Metadata that another tool has written or changed, or has kept for another offset, counts as empty. At worst,
        records are handled again.
        """
        text = metadata[len(PREFIX) + CHECKSUM_CHARACTERS :]
        try:
            bitmap = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except ValueError:
            return cls(offset)
        bits = (8 * at + bit for at, byte in enumerate(bitmap) for bit in range(8) if byte >> bit & 1)
        progress = cls(offset, frozenset(offset + 1 + bit for bit in bits))
        return progress if progress.metadata() == metadata else cls(offset)


def reach(characters: int) -> int:
    """Return how many offsets beyond the committed one fit into metadata of this length."""
    return (characters - len(PREFIX) - CHECKSUM_CHARACTERS) * 6 // 8 * 8


R = TypeVar("R")


class Window(Generic[R]):
    """The unfinished records of one partition, of which at most `most` are handed over at a time.

    These and at most `waiting` records that wait for them are in memory: `most_bytes` in all, or one record more.

    A record is only handed over if its offset is at most `width` beyond the first unfinished one (see `reach`). So all
    finished offsets always fit into a commit, and no finished record has to wait for its commit.
    """

    def __init__(
        self,
        most: int,
        width: int,
        most_bytes: int = sys.maxsize,
        size_of: Callable[[R], int] = lambda _: 0,
        waiting: int = 0,
    ) -> None:
        self._most = most
        self._most_in_memory = most + waiting
        self._width = width
        self._most_bytes = most_bytes
        self._size_of = size_of
        self.next = -1
        """Offset of the next record to read; −1 if it is not known yet."""
        self._unfinished: OrderedDict[int, int] = OrderedDict()
        """The timestamps of unfinished records by offset, ascending."""
        self._running: dict[int, Hashable] = {}
        """The keys of the records that are handed over, by offset."""
        self._queues: dict[Hashable, deque[int]] = {}
        """For each key, the offsets that wait behind the record being handled."""
        self._kept: dict[int, R] = {}
        """The waiting records that are in memory, by offset."""
        self._kept_bytes = 0
        self._sizes: dict[int, int] = {}
        """Bytes of the records that are handed over, by offset."""
        self._missed: dict[int, Hashable] = {}
        """The keys of records whose turn has come but that must be read again, by offset."""
        self._beyond: set[int] = set()
        """Finished offsets at or above the last commit's offset."""

    # -- what remains to be done

    @property
    def lowest(self) -> int:
        """The offset below which every record is finished."""
        return next(iter(self._unfinished), self.next)

    @property
    def lowest_ms(self) -> int | None:
        """Timestamp of the first unfinished record, in milliseconds since 1970."""
        return next(iter(self._unfinished.values()), None)

    @property
    def unfinished(self) -> int:
        return len(self._unfinished)

    @property
    def room(self) -> int:
        """Number of further records that may be handed over. Those that wait hold up no other, however large."""
        return 0 if self._running_bytes >= self._most_bytes else self._most - len(self._running)

    @property
    def _running_bytes(self) -> int:
        return sum(self._sizes.values())

    @property
    def is_full(self) -> bool:
        """True if nothing more may be read until the first unfinished record is finished."""
        return not self.fits(self.next)

    def fits(self, offset: int) -> bool:
        return not self._unfinished or offset <= self.lowest + self._width

    def to_read_again(self) -> int | None:
        """Return the first offset whose turn has come but whose record is not in memory."""
        return min(self._missed, default=None)

    def missed_before(self, offset: int) -> Iterator[int]:
        """Yield the offsets below `offset` that must be read again.

        The caller must `lose` each one before it asks for the next.
        """
        while (missed := self.to_read_again()) is not None and missed < offset:
            yield missed

    @property
    def has_spilled(self) -> bool:
        """True if some waiting records are not in memory."""
        return len(self._unfinished) > len(self._running) + len(self._kept)

    def progress(self, without: Collection[int] = frozenset()) -> Progress:
        """Return what is finished, leaving out the offsets in `without`.

        The result fits into a commit if the offsets in `without` finished last, because no record is handed over too
        far beyond them.
        """
        lowest = self.lowest
        while lowest in self._beyond:  # an earlier owner has finished this record, and it has not been read yet
            lowest += 1
        lowest = min(lowest, *without) if without else lowest
        return Progress(lowest, frozenset(o for o in self._beyond if o > lowest and o not in without))

    def committed(self, progress: Progress) -> None:
        """Forget the finished offsets below a commit's offset, including those that an earlier owner finished.

        The latter may not have been read yet, and need not be.
        """
        self.advance(progress.offset)
        self._beyond = {offset for offset in self._beyond if offset >= progress.offset}

    def learn(self, progress: Progress) -> None:
        """Learn what the group has committed through an earlier owner, or one that had the partition in between."""
        self.advance(progress.offset)
        self._beyond |= progress.beyond
        for offset in [offset for offset in self._unfinished if progress.covers(offset)]:
            del self._unfinished[offset]
            if offset in self._kept:
                self._taken(offset)

    def advance(self, offset: int) -> None:
        """Continue reading at this offset unless `next` is already beyond it; no record before it is left to read."""
        self.next = max(self.next, offset)

    # -- events; each method returns the records to hand over now, with their offsets

    def add(self, offset: int, key: Hashable, record: R, timestamp_ms: int = 0) -> list[tuple[int, R]]:
        """Add the record that was read next. Records with the same `key` run in order; None means unordered.

        A record from before `next` is skipped: another owner has finished it since it was fetched.
        """
        if offset < self.next:
            return []
        self.next = offset + 1
        if offset in self._beyond:
            return []
        self._unfinished[offset] = timestamp_ms
        if key in self._queues:
            self._queues[key].append(offset)
            self._keep(offset, record)
            return []
        if key is not None:
            self._queues[key] = deque()
        return self._run(offset, key, record)

    def add_again(self, offset: int, record: R) -> list[tuple[int, R]]:
        """Add a record that was read again."""
        if offset in self._missed:
            key = self._missed.pop(offset)
            return self._run(offset, key, record) if offset in self._unfinished else self._turn(key)
        if offset in self._unfinished and offset not in self._running:
            self._keep(offset, record)
        return []

    def finish(self, offset: int) -> list[tuple[int, R]]:
        key = self._running.pop(offset)
        del self._sizes[offset]
        if self._unfinished.pop(offset, None) is not None:
            self._beyond.add(offset)
        return self._turn(key)

    def lose(self, offset: int) -> list[tuple[int, R]]:
        """Give up a record that should have been read again but no longer exists."""
        self._unfinished.pop(offset, None)
        return self._turn(self._missed.pop(offset))

    # -- helpers

    def _turn(self, key: Hashable) -> list[tuple[int, R]]:
        """Choose the key's next record."""
        queue = self._queues.get(key, deque())
        while queue:
            offset = queue.popleft()
            if offset in self._kept:
                return self._run(offset, key, self._taken(offset))
            if offset in self._unfinished:
                self._missed[offset] = key
                return []
        self._queues.pop(key, None)
        return []

    def _run(self, offset: int, key: Hashable, record: R) -> list[tuple[int, R]]:
        self._running[offset] = key
        self._sizes[offset] = self._size_of(record)
        while self._kept and not self._may_keep(more=0):
            self._taken(next(reversed(self._kept)))  # the record is read again when its turn comes
        return [(offset, record)]

    def _keep(self, offset: int, record: R) -> None:
        if offset not in self._kept and self._may_keep(more=1):
            self._kept[offset] = record
            self._kept_bytes += self._size_of(record)

    def _may_keep(self, more: int) -> bool:
        is_light = self._running_bytes + self._kept_bytes < self._most_bytes
        return is_light and len(self._running) + len(self._kept) + more <= self._most_in_memory

    def _taken(self, offset: int) -> R:
        """Remove a waiting record from memory."""
        record = self._kept.pop(offset)
        self._kept_bytes -= self._size_of(record)
        return record
