"""One Kafka transaction: outputs, changelog rows and the source offset are committed together or not at all."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import (
    BrokerResponseError,
    InvalidTxnState,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    RequestTimedOutError,
)
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.structs import OffsetAndMetadata

from faust_eos.changelog import BOOKMARK_KEY, Bookmark, changelog_key
from faust_eos.database import RowChange
from faust_eos.errors import TRANSIENT, OutputMissing, OutputRefused, refuses_record
from faust_eos.kafka import Clients, encode_partitions, started
from faust_eos.options import Options

log = structlog.get_logger()

TIMED_OUT = (TimeoutError, KafkaTimeoutError, RequestTimedOutError)
STOP_SECONDS = 5.0
CANCEL_SECONDS = 0.1
MOST_REQUESTS = 10
"""Maximum number of requests that a producer can have in flight: one to its coordinator and one to each broker."""
START_SECONDS = 60.0
"""Longest time to open a producer, which waits for its last owner's transaction to end."""
PRODUCE_BATCH_BYTES = 512 * 1024
MAX_REQUEST_BYTES = 2 * 1024 * 1024
"""Largest record; topics with records of that size need a `max.message.bytes` to match."""
RETRY_BACKOFF_MS = 10
"""Kafka 4 answers the first produce of a transaction with a retriable error while it verifies the transaction."""

Row = tuple[bytes | None, bytes | None, int | None, list[tuple[str, bytes]]]
"""Key, value, timestamp in milliseconds, headers."""
LEAST_BYTES = 64 * 1024
GROW_AFTER = 32
"""After this many commits, reduced slices are doubled."""


@dataclass(frozen=True, slots=True)
class Output:
    """A record that the agent sends with the batch."""

    topic: str
    key: bytes | None
    value: bytes | None
    _: KW_ONLY
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    partition: int | None = None
    timestamp_ms: int | None = None
    partition_key: bytes | None = None
    """Chooses the partition in place of the key, where none is given."""


def size_of(record: Any) -> int:
    """Return the size of an `Output` or an aiokafka record in bytes."""
    named = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + named


def transactional_id(app_id: str, source: TopicPartition) -> str:
    """Name the writer of a source partition; the name is unique to the app, topic and partition.

    A hyphen in the topic becomes `~`, which is in no topic's name, so the last two hyphens separate the parts. The name
    begins with `{app_id}-`, like the rights of the app's Kafka user.
    """
    return f"{app_id}-{source.topic.replace('-', '~')}-{source.partition}"


class Slices:
    """Adapts the sizes of one partition's transactions. It outlives the partition's sessions.

    A slice on which the agent fails is halved until the failing record is alone. A slice whose commit timed out is
    retried at half its size, in records and in bytes, and later slices grow again step by step.

    `most` limits the number of records, or of due keys. `most_bytes` limits the bytes of the records or, where records
    finish before they are committed (at least once), of what they send. `most_written` limits what the agent writes,
    through `Batch.most_bytes`.
    """

    def __init__(self, most: int, most_bytes: int, most_written: int) -> None:
        self._limits = (most, most_bytes, most_written)
        self.most, self._most_bytes, self.most_written = self._limits
        self._suspects = 0
        """Among this many next records is one that fails."""
        self._start = most
        """Size of the first slice after a record failed alone: small, because more such records may follow."""
        self._good = 0
        """Number of commits since a timeout, or since the sizes were last doubled."""

    def take(self, sizes: Iterable[int]) -> int:
        """Return how many of the next records make a slice, at least one. `sizes` yields their bytes."""
        most = min(self.most, self._start)
        if self._suspects:
            most = min(most, max(1, self._suspects // 2))
        number = total = 0
        for size in sizes:
            total += size
            if number and (number == most or total > self._most_bytes):
                break
            number += 1
        return number

    def committed(self, number: int) -> None:
        self._suspects = max(0, self._suspects - number)
        self._start = min(self._limits[0], 2 * self._start)
        self._good += 1
        if self._good == GROW_AFTER:
            self._good = 0
            sizes = zip(self._limits, (self.most, self._most_bytes, self.most_written), strict=True)
            self.most, self._most_bytes, self.most_written = (min(limit, 2 * size) for limit, size in sizes)

    def agent_failed(self, number: int) -> None:
        """Note that the agent failed on a slice of `number` records; a single record counts as done."""
        if number > 1:
            self._suspects = number
        else:
            self._suspects, self._start = 0, 1

    def timed_out(self, number: int, read: int, written: int) -> None:
        """Note that the commit of a slice timed out. `read` and `written` are its bytes."""
        self._good = 0
        self.most = max(1, min(self.most, number) // 2)
        self._most_bytes = max(LEAST_BYTES, min(self._most_bytes, read) // 2)
        self.most_written = max(LEAST_BYTES, min(self.most_written, written) // 2)


@asynccontextmanager
async def in_time(
    options: Options, slices: Slices, where: str, number: int, read: int, written: int
) -> AsyncIterator[None]:
    """Limit the time for a commit of `number` records or keys; after a timeout, the next one is half as large.

    The coordinator aborts a transaction that takes too long. Its producer is then fenced, and the error does not say
    why, so every error after that time counts as a timeout. `read` and `written` are its bytes.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(options.commit_timeout_seconds):
            yield
    except TRANSIENT as error:
        if isinstance(error, TIMED_OUT) or loop.time() - began >= options.transaction_timeout_seconds:
            slices.timed_out(number, read, written)
            log.warning("commit_timed_out", partition=where, stage="commit", records=number, bytes=written)
        raise
    slices.committed(number)


class TransactionalProducer:
    """The only writer for one source partition; opening it fences earlier owners.

    It never aborts a transaction. After a failure it is closed, and Kafka ends the transaction when the next producer
    with the same id opens.
    """

    def __init__(self, transactional_id: str, clients: Clients, options: Options) -> None:
        self._producer = clients.producer(
            transactional_id=transactional_id,
            transaction_timeout_ms=int(options.transaction_timeout_seconds * 1000),
            acks="all",
            linger_ms=0,
            retry_backoff_ms=RETRY_BACKOFF_MS,
            max_batch_size=PRODUCE_BATCH_BYTES,
            max_request_size=MAX_REQUEST_BYTES,
        )
        self._partitioner = DefaultPartitioner()

    async def open(self, timeout_seconds: float = START_SECONDS) -> None:
        """Fence earlier owners, so that they can no longer commit. Raises: KafkaError, TimeoutError."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._producer.start()
        except AssertionError as error:  # aiokafka raises this if a starting broker names no broker at all
            raise KafkaConnectionError("no broker is known") from error

    async def close(self) -> None:
        """Close within `STOP_SECONDS`, because a broker that is down must not delay a partition that moves."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._producer.stop()
        except (KafkaError, OSError, TimeoutError):
            await self._abandon()

    async def _abandon(self) -> None:
        """Close what remains of a producer that could not be stopped; else its tasks, batches and sockets would stay.

        aiokafka's `stop` waits until everything is delivered, and its sending task, even when cancelled, for its
        requests.
        """
        producer = self._producer
        await producer.client.close()
        sending = producer._sender.sender_task if producer._sender else None  # noqa: SLF001 – it is pinned exactly
        for _ in range(MOST_REQUESTS):
            if sending is None or sending.done():
                break
            sending.cancel()  # from the second time on, this cancels the request that the task is waiting for
            await asyncio.wait([sending], timeout=CANCEL_SECONDS)
        accumulator = producer._message_accumulator  # noqa: SLF001 – see above
        for batch in (*chain(*accumulator._batches.values()), *accumulator._pending_batches):  # noqa: SLF001 – see above
            batch.future.cancel()

    async def check_owner(self, source: TopicPartition, group: str) -> None:
        """Check that no later owner has fenced this producer. Raises: KafkaError if one has."""
        await self._producer.begin_transaction()
        await self._producer.send_offsets_to_transaction({source: 0}, group)
        await self._producer.abort_transaction()

    async def commit(
        self,
        outputs: Collection[Output],
        rows: Mapping[TopicPartition, Sequence[RowChange]],
        bookmark: Bookmark,
        source: TopicPartition,
        group: str,
        previous: Mapping[TopicPartition, int] = MappingProxyType({}),
        partitions: int = 0,
    ) -> dict[TopicPartition, int]:
        """Commit everything, and return the offset of the bookmark in each changelog.

        `previous` has the offsets of the previous bookmarks. `partitions` is the source's partition count; 0 means
        unknown. Raises: KafkaError, ChangelogReplaced.
        """
        sent = await self._begin(outputs)
        marks, last = {}, {}
        for target, changes in rows.items():
            mark = replace(bookmark, previous=previous.get(target, -1), records=len(changes) + 1)
            written: list[Row] = [(changelog_key(key), value, None, []) for key, value in changes]
            batches = await self._send(target, [*written, (BOOKMARK_KEY, mark.encode(), None, [])])
            marks[target], last[target] = mark, batches[-1]
            sent += batches
        metadata = encode_partitions(partitions) if partitions else ""
        await self._end(sent, {source: OffsetAndMetadata(bookmark.source, metadata)}, group)
        offsets = {target: batch.last_offset() for target, batch in last.items()}
        for target, mark in marks.items():
            mark.check(target, offsets[target])
        return offsets

    async def commit_outputs(
        self, outputs: Collection[Output], offsets: Mapping[TopicPartition, OffsetAndMetadata], group: str
    ) -> None:
        """Commit the outputs and the group's offsets. Raises: KafkaError."""
        sent = await self._begin(outputs)
        # offsets come later: a broker that checks both at once refuses one of them, which is resent only after a pause
        await all_arrived(sent)
        await self._end(sent, offsets, group)

    async def _begin(self, outputs: Iterable[Output]) -> list["Sent"]:
        await self._producer.begin_transaction()
        grouped: dict[TopicPartition, list[Row]] = {}
        partitions: dict[str, list[int]] = {}  # read anew for each commit, because a topic may grow
        for output in outputs:
            topic, key, partition = output.topic, output.partition_key or output.key, output.partition
            if partition is None:
                if topic not in partitions:
                    partitions[topic] = sorted(await self._producer.partitions_for(topic))
                partition = int(self._partitioner(key, partitions[topic], partitions[topic]))
            row = (output.key, output.value, output.timestamp_ms, output.headers)
            grouped.setdefault(TopicPartition(topic, partition), []).append(row)
        sent: list[Sent] = []
        for target, rows in grouped.items():
            sent += await self._send(target, rows)
        return sent

    async def _end(
        self, sent: Collection["Sent"], offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str
    ) -> None:
        await self._producer.send_offsets_to_transaction(dict(offsets), group)
        await all_arrived(sent)
        await self._producer.commit_transaction()

    async def _send(self, target: TopicPartition, rows: Iterable[Row]) -> list["Sent"]:
        """Send in batches that are built here: `AIOKafkaProducer.send` costs several times as much per record."""
        sent: list[Sent] = []
        builder = self._producer.create_batch()
        for key, value, timestamp, headers in rows:
            if builder.append(key=key, value=value, timestamp=timestamp, headers=headers) is None:
                sent.append(await self._submit(builder, target))
                builder = self._producer.create_batch()
                builder.append(key=key, value=value, timestamp=timestamp, headers=headers)
        sent.append(await self._submit(builder, target))
        return sent

    async def _submit(self, builder: Any, target: TopicPartition) -> "Sent":
        count = builder.record_count()
        await asyncio.sleep(0)  # building and checksumming half a megabyte takes long on a slow machine
        future = await self._producer.send_batch(builder, target.topic, partition=target.partition)
        # after a failed commit nobody awaits the rest, and asyncio would log each as an error
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return Sent(future, count, target.topic)


@dataclass(frozen=True, slots=True)
class Sent:
    delivered: asyncio.Future[Any]
    count: int
    topic: str

    async def arrived(self) -> None:
        """Wait for the broker's answer.

        Raises: OutputRefused; KafkaError with a note of the topic, which the answer does not name.
        """
        try:
            await self.delivered
        except KafkaError as error:
            if isinstance(error, BrokerResponseError) and refuses_record(error):
                raise OutputRefused(self.topic, error) from error
            error.add_note(f"topic {self.topic}")
            raise

    def last_offset(self) -> int:
        return int(self.delivered.result().offset) + self.count - 1


async def all_arrived(sent: Iterable[Sent]) -> None:
    """Wait for the broker's answers. Raises: KafkaError with a note of the topic.

    If one topic refuses us, the transaction has none of the topics, and the others answer InvalidTxnState, which would
    be retried forever. So the answer of the topic that refused us is raised, even if it comes later.
    """
    answers = [asyncio.ensure_future(batch.arrived()) for batch in sent]
    try:
        await asyncio.gather(*answers)
    except InvalidTxnState as error:
        outcomes = await asyncio.gather(*answers, return_exceptions=True)
        others = [
            outcome
            for outcome in outcomes
            if isinstance(outcome, Exception) and not isinstance(outcome, InvalidTxnState)
        ]
        raise others[0] if others else error from None


async def require_outputs(clients: Clients, topics: Iterable[str]) -> None:
    """Check that the topics exist; a producer would wait for the metadata of a missing one. Raises: OutputMissing."""
    async with started(clients.admin()) as admin:
        described = await admin.describe_topics(sorted(topics))
    for topic in described:
        if not topic["partitions"]:
            raise OutputMissing(topic=topic["topic"])
