"""Window of a partition: which record may be handed over next. Decisions, without I/O.

A window reaches from the first unfinished record to the next one to read. Records of one key are handed over one after
the other; while one is being handled, the others wait, and records of other keys overtake them. Few of those that wait
are kept in memory: of the rest only the offset is, and the record is read again when its turn comes.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

from afterword.streams.runtime.progress import Progress

R = TypeVar("R")


class _Place(NamedTuple):
    key: Hashable
    timestamp_ms: int


class Window(Generic[R]):
    """Unfinished records of one partition, at most `most` of them in memory.

    `width`: how far beyond the first unfinished record one may be handed over (see `progress.reach`). All that is
    finished therefore always fits into a commit, and nothing that is finished has to wait for it.
    """

    def __init__(self, most: int, width: int) -> None:
        self._most = most
        self._width = width
        self.next = -1
        """Offset of the next record to read; −1: not known yet."""
        self._unfinished: OrderedDict[int, _Place] = OrderedDict()
        """Unfinished records by offset, ascending."""
        self._running: dict[int, Hashable] = {}
        """Keys of the records that were handed over."""
        self._queues: dict[Hashable, deque[int]] = {}
        """Offsets of each key that wait behind the one that runs."""
        self._kept: dict[int, R] = {}
        """Those of them that are in memory."""
        self._missed: dict[int, Hashable] = {}
        """Keys of those whose turn has come, and that have to be read again."""
        self._beyond: set[int] = set()
        """Finished offsets, from that of the last commit on."""

    # -- what there is to do

    @property
    def lowest(self) -> int:
        """Offset below which every record is finished."""
        return next(iter(self._unfinished), self.next)

    @property
    def lowest_ms(self) -> int | None:
        """Timestamp of the first unfinished record, in milliseconds since 1970."""
        return next((place.timestamp_ms for place in self._unfinished.values()), None)

    @property
    def unfinished(self) -> int:
        return len(self._unfinished)

    @property
    def room(self) -> int:
        """Number of records that may be handed over in addition."""
        return self._most - len(self._running)

    @property
    def is_full(self) -> bool:
        """Nothing further may be read before the first unfinished record is finished."""
        return not self.fits(self.next)

    def fits(self, offset: int) -> bool:
        return not self._unfinished or offset <= self.lowest + self._width

    def to_read_again(self) -> int | None:
        """Return the first offset whose turn has come, and whose record is not in memory."""
        return min(self._missed, default=None)

    def missed_before(self, offset: int) -> Iterator[int]:
        """Yield what is to be read again and lies before that offset, also what is next after one of these is lost."""
        while (missed := self.to_read_again()) is not None and missed < offset:
            yield missed

    @property
    def has_spilled(self) -> bool:
        """Some records wait that are not in memory."""
        return len(self._unfinished) > len(self._running) + len(self._kept)

    def progress(self, without: Collection[int] = frozenset()) -> Progress:
        """Return what is finished. `without`: offsets to be left out, though they are finished.

        It fits into a commit if these finished after all others: nothing is handed over that is too far beyond them.
        """
        lowest = self.lowest
        while lowest in self._beyond:  # an earlier owner has finished it, and it is not read yet
            lowest += 1
        lowest = min(lowest, *without) if without else lowest
        return Progress(lowest, frozenset(o for o in self._beyond if o > lowest and o not in without))

    def committed(self, progress: Progress) -> None:
        """Forget the finished offsets below that of a commit, those that an earlier owner has finished included.

        These may not be read yet, and need not be any more.
        """
        self.advance(progress.offset)
        self._beyond = {offset for offset in self._beyond if offset >= progress.offset}

    def learn(self, progress: Progress) -> None:
        """Take in what the group has committed: by an earlier owner, or by one that had the partition meanwhile."""
        self.advance(progress.offset)
        self._beyond |= progress.beyond
        for offset in [offset for offset in self._unfinished if progress.covers(offset)]:
            del self._unfinished[offset]
            self._kept.pop(offset, None)

    def advance(self, offset: int) -> None:
        """Go on reading at that offset, or where it is if that is later: nothing is left to read before it."""
        self.next = max(self.next, offset)

    # -- what happens; each returns the records that are to be handed over now, with their offsets

    def add(self, offset: int, key: Hashable, record: R, timestamp_ms: int = 0) -> list[tuple[int, R]]:
        """Take the record that was read next. `key`: records of one are in order; None is no key.

        One from before `next` is passed over: another owner has finished it since it was fetched.
        """
        if offset < self.next:
            return []
        self.next = offset + 1
        if offset in self._beyond:
            return []
        self._unfinished[offset] = _Place(key, timestamp_ms)
        if key in self._queues:
            self._queues[key].append(offset)
            self._keep(offset, record)
            return []
        if key is not None:
            self._queues[key] = deque()
        return self._run(offset, key, record)

    def add_again(self, offset: int, record: R) -> list[tuple[int, R]]:
        """Take a record that was read again."""
        if offset in self._missed:
            key = self._missed.pop(offset)
            return self._run(offset, key, record) if offset in self._unfinished else self._turn(key)
        if offset in self._unfinished and offset not in self._running:
            self._keep(offset, record)
        return []

    def finish(self, offset: int) -> list[tuple[int, R]]:
        """Note that the record is done."""
        key = self._running.pop(offset)
        if self._unfinished.pop(offset, None) is not None:
            self._beyond.add(offset)
        return self._turn(key)

    def lose(self, offset: int) -> list[tuple[int, R]]:
        """Give up a record that was to be read again, and does not exist any more."""
        self._unfinished.pop(offset, None)
        return self._turn(self._missed.pop(offset))

    # -- helpers

    def _turn(self, key: Hashable) -> list[tuple[int, R]]:
        """Choose the next record of that key."""
        queue = self._queues.get(key, deque())
        while queue:
            offset = queue.popleft()
            if offset in self._kept:
                return self._run(offset, key, self._kept.pop(offset))
            if offset in self._unfinished:
                self._missed[offset] = key
                return []
        self._queues.pop(key, None)
        return []

    def _run(self, offset: int, key: Hashable, record: R) -> list[tuple[int, R]]:
        self._running[offset] = key
        if self._kept and len(self._running) + len(self._kept) > self._most:
            self._kept.popitem()  # it is read again
        return [(offset, record)]

    def _keep(self, offset: int, record: R) -> None:
        if len(self._running) + len(self._kept) < self._most:
            self._kept[offset] = record
