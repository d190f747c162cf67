"""A broker in memory, with transactional logs, fencing of producers, a group's offsets, and compaction.

It behaves like Kafka wherever the engine could tell the difference. A commit is decided first, and becomes visible in
each partition when that partition's marker is written. A producer that opens waits for the markers. It does not wait
for the group, which takes over the offsets some time after its own marker.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import InvalidTxnState, MessageSizeTooLargeError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata

GROUP = TopicPartition("__consumer_offsets", 0)
DELETE_RETENTION_MS = 24 * 3600 * 1000
"""Kafka's default for how long tombstones stay."""


Offset = OffsetAndMetadata
"""The offset that a transaction was given."""


@dataclass(frozen=True, slots=True)
class Record:
    """Record with aiokafka's names."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_type: int = 0
    checksum: None = None


@dataclass(eq=False)
class Transaction:
    producer: str
    epoch: int
    note: Any
    """A note by its owner."""
    outcome: str = ""
    """"commit" or "abort", once decided."""
    unmarked: list[TopicPartition] = field(default_factory=list)
    """Partitions that it wrote to and that lack its marker."""
    written: list[Record] = field(default_factory=list)
    offsets: dict[TopicPartition, Offset] = field(default_factory=dict)


@dataclass(slots=True)
class Entry:
    record: Record
    transaction: Transaction | None
    cleaned_ms: int | None = None
    """The time of the first compaction that a tombstone has survived."""


class Log:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.gone: list[Entry] = []
        """Records before `start`, which were deleted rather than compacted."""
        self.starts = [0]
        """Every position at which the log has begun."""
        self.end = 0
        self.open: dict[Transaction, int] = {}
        """Transactions that lack their marker here, with their first offsets."""

    @property
    def stable(self) -> int:
        """Return the last stable offset; all transactions before it are decided."""
        return min(self.open.values(), default=self.end)

    @property
    def start(self) -> int:
        return self.starts[-1]

    def delete(self, before: int) -> None:
        """Delete the records before this offset, as retention or a person does. The log then begins there."""
        if before > self.start:
            self.starts.append(before)
            self.gone += [entry for entry in self.entries if entry.record.offset < before]
            self.entries = [entry for entry in self.entries if entry.record.offset >= before]

    def history(self, position: int) -> list[Record]:
        """Return every record that was ever written from this position on, for a log without transactions and
        compaction."""
        return [entry.record for entry in [*self.gone, *self.entries] if entry.record.offset >= position]

    def read(self, position: int, most: int | None = None, *, committed: bool = True) -> list[Record]:
        """Read from this position on: committed records up to the last stable offset, or all records."""
        end, found = self.stable if committed else self.end, []
        for entry in self._from(position):
            if entry.record.offset >= end or (most is not None and len(found) >= most):
                break
            if not committed or entry.transaction is None or entry.transaction.outcome == "commit":
                found.append(entry.record)
        return found

    def _from(self, position: int) -> Iterable[Entry]:
        low, high = 0, len(self.entries)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.entries[middle].record.offset < position else (low, middle)
        return self.entries[low:]

    def compact(self, before: int, now_ms: int) -> None:
        """Keep only the latest record of each key before this offset, and remove old tombstones.

        Since KIP-534, a tombstone stays for DELETE_RETENTION_MS after the first compaction that it survives.
        """
        before = min(before, self.stable)
        live = [e for e in self.entries if e.transaction is None or e.transaction.outcome != "abort"]
        last = {e.record.key: e.record.offset for e in live if e.record.offset < before}
        self.entries = [e for e in self.entries if e.record.offset >= before or _survives(e, last, now_ms)]


def _survives(entry: Entry, last: dict[bytes | None, int], now_ms: int) -> bool:
    if entry.transaction is not None and entry.transaction.outcome == "abort":
        return False
    if last[entry.record.key] != entry.record.offset:
        return False
    if entry.cleaned_ms is None:
        entry.cleaned_ms = now_ms
    return entry.record.value is not None or now_ms - entry.cleaned_ms < DELETE_RETENTION_MS


class Broker:
    """`later` takes the actions that the broker performs by itself some time afterwards."""

    def __init__(self, later: Callable[[str, Callable[[], None]], None]) -> None:
        self._later = later
        self._logs: dict[TopicPartition, Log] = {}
        self._epochs: dict[str, int] = {}
        self._current: dict[str, Transaction] = {}
        self.offsets: dict[TopicPartition, Offset] = {}
        self.committed: list[Transaction] = []
        """Committed transactions, in the order in which they were decided."""
        self._taken_over: dict[TopicPartition, int] = {}
        """Index of the transaction whose offset the group has, for each source."""
        self._unstable: list[Transaction] = []
        """Transactions whose offsets the group has neither taken over nor dropped."""
        self._group_is_slow = False
        self._held: list[Transaction] = []
        self.generation = 0
        """Generation of the group."""
        self.on_commit: Callable[[Transaction], None] = lambda _: None
        """Called with every transaction that is committed."""
        self.largest: dict[str, int] = {}
        """`max.message.bytes` of topics that refuse larger values."""

    def log(self, where: TopicPartition) -> Log:
        if where not in self._logs:
            self._logs[where] = Log()
        return self._logs[where]

    def append(
        self,
        where: TopicPartition,
        rows: Iterable[tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes], ...]]],
        transaction: Transaction | None = None,
    ) -> int:
        """Append records and return the offset of the first."""
        log = self.log(where)
        first = log.end
        for key, value, timestamp, headers in rows:
            record = Record(where.topic, where.partition, log.end, key, value, timestamp, headers)
            log.entries.append(Entry(record, transaction))
            if transaction is not None:
                transaction.written.append(record)
            log.end += 1
        return first

    # -- transactions

    def open_producer(self, producer: str) -> int:
        """Fence earlier epochs, end their transaction in every partition, and return the new epoch."""
        self.end_by_force(producer)
        self._epochs[producer] = self._epochs.get(producer, -1) + 1
        return self._epochs[producer]

    def end_by_force(self, producer: str) -> None:
        """Abort an undecided transaction, and finish a decided one."""
        transaction = self._current.get(producer)
        if transaction is not None:
            if not transaction.outcome:
                self._decide(transaction, "abort")
            self._finish(transaction)

    def time_out(self, producer: str) -> None:
        """Abort a transaction that takes too long and fence its owner, as the coordinator does."""
        transaction = self._current.get(producer)
        if transaction is not None and not transaction.outcome:
            self.open_producer(producer)

    def delete_topic(self, where: TopicPartition) -> None:
        """Delete the topic and recreate it empty. Before that, the group takes over the offsets of decided
        transactions."""
        for transaction in self.committed:
            self._finish(transaction)
            self._mark(transaction, GROUP)
        self._logs.pop(where, None)

    def produce(self, producer: str, epoch: int, note: Any, where: TopicPartition, rows: list[Any]) -> int:
        if any(len(value or b"") > self.largest.get(where.topic, len(value or b"")) for _, value, *_ in rows):
            self._check(producer, epoch)
            raise MessageSizeTooLargeError
        transaction = self._enlist(producer, epoch, note, where)
        self.log(where).open.setdefault(transaction, self.log(where).end)
        return self.append(where, rows, transaction)

    def add_offsets(self, producer: str, epoch: int, note: Any, offsets: dict[TopicPartition, Offset]) -> None:
        transaction = self._enlist(producer, epoch, note, GROUP)
        transaction.offsets.update(offsets)
        if transaction not in self._unstable:
            self._unstable.append(transaction)

    def is_stable(self, source: TopicPartition) -> bool:
        """Tell whether no transaction can change the group's offset any longer."""
        return not any(source in transaction.offsets for transaction in self._unstable)

    def commit(self, producer: str, epoch: int) -> None:
        self._check(producer, epoch)
        transaction = self._current.get(producer)
        if transaction is None or transaction.epoch != epoch or transaction.outcome == "abort":
            raise InvalidTxnState
        if not transaction.outcome:
            self._decide(transaction, "commit")

    def abort(self, producer: str, epoch: int) -> None:
        self._check(producer, epoch)
        self.end_by_force(producer)

    def _check(self, producer: str, epoch: int) -> None:
        if self._epochs.get(producer) != epoch:
            raise ProducerFenced

    def _enlist(self, producer: str, epoch: int, note: Any, where: TopicPartition) -> Transaction:
        self._check(producer, epoch)
        transaction = self._current.get(producer)
        if transaction is None or transaction.outcome:
            if transaction is not None:
                self._finish(transaction)
            transaction = self._current[producer] = Transaction(producer, epoch, note)
        if where not in transaction.unmarked:
            transaction.unmarked.append(where)
        return transaction

    def _decide(self, transaction: Transaction, outcome: str) -> None:
        transaction.outcome = outcome
        if outcome == "commit":
            self.committed.append(transaction)
            self.on_commit(transaction)
        for where in transaction.unmarked:
            if where == GROUP and self._group_is_slow:
                self._held.append(transaction)
            else:
                self._later("marker", lambda where=where: self._mark(transaction, where))

    def slow_down_the_group(self, slow: bool) -> None:
        """While the group is slow, it takes over no offsets; afterwards, it takes over all of them at once."""
        self._group_is_slow = slow
        if not slow:
            held, self._held = self._held, []
            for transaction in held:
                self._mark(transaction, GROUP)

    def _finish(self, transaction: Transaction) -> None:
        for where in [where for where in transaction.unmarked if where != GROUP]:
            self._mark(transaction, where)

    def _mark(self, transaction: Transaction, where: TopicPartition) -> None:
        if where not in transaction.unmarked:
            return
        transaction.unmarked.remove(where)
        if where != GROUP:
            log = self.log(where)
            log.open.pop(transaction, None)
            log.end += 1  # the marker takes up an offset
        else:
            self._take_over(transaction)

    def _take_over(self, transaction: Transaction) -> None:
        if transaction in self._unstable:
            self._unstable.remove(transaction)
        if transaction.outcome != "commit":
            return
        number = self.committed.index(transaction)
        for source, offset in transaction.offsets.items():
            if number >= self._taken_over.get(source, 0):
                self._taken_over[source] = number
                self.offsets[source] = offset
