"""One at-least-once partition in memory and in virtual time, with a log, a group, and a broker that may be slow or
fail."""

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import IllegalOperation, InvalidTimestampError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from distributions.engine.tests.simulation.clients import Builder
from faust_eos.at_least_once import AtLeastOnce, AtLeastOncePartition, ConcurrentMessage
from faust_eos.options import Options
from faust_eos.transaction import Output
from faust_eos.window import Progress

SOURCE = TopicPartition("in", 0)
HEARTBEAT_SECONDS = 0.5

Agent = Callable[[ConcurrentMessage], Awaitable[None]]


class Broker:
    """Holds the log, the group and the transactions, and acts as the partition's `Clients`. A commit takes time in
    proportion to its bytes."""

    def __init__(self, end: int, *, first: int = 0, bytes_per_second: float = inf) -> None:
        self.first, self.end = first, end
        self.keys: dict[int, bytes] = {}
        """Keys of records; by default, each record has its own."""
        self.headers: dict[int, list[tuple[str, bytes]]] = {}
        """Headers of records; by default none."""
        self.bytes_per_second = bytes_per_second
        self.group: OffsetAndMetadata | None = None
        self.is_stable = True
        """True once no other transaction can change the group's offset."""
        self.commits: list[tuple[list[int], Progress]] = []
        """The outputs' values and the group's offset, for each commit."""
        self.tried: list[int] = []
        """Number of outputs of each transaction, including those that failed."""
        self.longest_seconds = inf
        """Time after which a transaction is aborted, and its producer fenced."""
        self.before_commit: Callable[[], None] = lambda: None
        """Raises the error that a commit should fail with."""
        self.refuses: Callable[[bytes], bool] = lambda _: False
        """Returns whether an output of this value is an invalid record."""

    @property
    def outputs(self) -> list[int]:
        return [value for values, _ in self.commits for value in values]

    @property
    def progress(self) -> Progress:
        return Progress.read(*self.group) if self.group else Progress(0)

    def producer(self, **_: Any) -> "Producer":
        return Producer(self)

    def admin(self) -> Any:
        return Admin()

    async def committed(self, *_: Any) -> OffsetAndMetadata | None:
        if not self.is_stable:
            await asyncio.Event().wait()
        return self.group

    async def commit(self, values: list[bytes], offset: OffsetAndMetadata) -> None:
        self.tried.append(len(values))
        seconds = sum(map(len, values)) / self.bytes_per_second
        await asyncio.sleep(min(seconds, self.longest_seconds))
        if seconds > self.longest_seconds:
            raise ProducerFenced
        self.before_commit()
        self.group = offset
        self.commits.append(([int(value) for value in values], self.progress))


class Admin:
    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
        return [{"topic": topic, "partitions": [0]} for topic in topics]


class Producer:
    """Producer like aiokafka's."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._in_transaction = False
        self._values: list[bytes] = []
        self._offset = OffsetAndMetadata(0, "")

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def begin_transaction(self) -> None:
        if self._in_transaction:
            raise IllegalOperation("in a transaction already")
        self._in_transaction, self._values = True, []

    def create_batch(self) -> Builder:
        return Builder()

    async def partitions_for(self, _: str) -> set[int]:
        return {0}

    async def send_batch(self, batch: Builder, *_: Any, **__: Any) -> asyncio.Future[Any]:
        self._values += [row[1] for row in batch.rows]
        acknowledged: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if any(self._broker.refuses(row[1]) for row in batch.rows):
            acknowledged.set_exception(InvalidTimestampError())
        else:
            acknowledged.set_result(SimpleNamespace(offset=0))
        return acknowledged

    async def send_offsets_to_transaction(self, offsets: dict[TopicPartition, OffsetAndMetadata], _: str) -> None:
        self._offset = offsets[SOURCE]

    async def commit_transaction(self) -> None:
        await self._broker.commit(self._values, self._offset)
        self._in_transaction = False


class Consumer:
    """Consumer like aiokafka's, for one partition."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._position = 0

    def seek(self, _: TopicPartition, offset: int) -> None:
        self._position = offset

    def resume(self, _: TopicPartition) -> None: ...

    async def position(self, _: TopicPartition) -> int:
        return self._position

    async def beginning_offsets(self, _: Any) -> dict[TopicPartition, int]:
        return {SOURCE: self._broker.first}

    async def end_offsets(self, _: Any) -> dict[TopicPartition, int]:
        return {SOURCE: self._broker.end}

    async def getmany(self, _: TopicPartition, *, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Any]]:
        offsets = range(self._position, min(self._broker.end, self._position + max_records))
        if not offsets:
            await asyncio.sleep(timeout_ms / 1000)
            return {}
        self._position = offsets[-1] + 1
        return {SOURCE: [self._record(offset) for offset in offsets]}

    def _record(self, offset: int) -> Any:
        return SimpleNamespace(
            topic=SOURCE.topic,
            partition=SOURCE.partition,
            offset=offset,
            timestamp=offset,
            timestamp_type=0,
            headers=self._broker.headers.get(offset, []),
            key=self._broker.keys.get(offset, b"%d" % offset),
            value=b"",
            checksum=None,
        )


class Worker:
    """Stands in for the engine around the partition. `agent` handles each record and acknowledges it."""

    def __init__(
        self, broker: Broker, agent: Agent | None = None, schema: AtLeastOnce | None = None, **options: Any
    ) -> None:
        self.app = SimpleNamespace(
            engine=Options(**options),
            conf=SimpleNamespace(id="app", broker_heartbeat_interval=HEARTBEAT_SECONDS),
            consumer_generation_id=0,
            engine_metrics=SimpleNamespace(expired=self._expired),
        )
        self.broker = broker
        self.kafka = Consumer(broker)
        self.handled = 0
        self.expired = 0
        self.begun: list[int] = []
        """Offsets of the records that the agent was given."""
        self.errors: list[BaseException] = []
        self._agent = agent or self.answer
        self._tasks: set[asyncio.Task[None]] = set()
        self.partition = AtLeastOncePartition(self, SOURCE, schema or AtLeastOnce())

    def clients(self) -> Broker:
        return self.broker

    def on_partition_exit(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(error)

    def stop_worker(self, error: BaseException) -> None:
        self.errors.append(error)

    def ack(self, _: Any) -> bool:
        return True

    def _expired(self, count: int) -> None:
        self.expired += count

    async def callback(self, message: ConcurrentMessage) -> None:
        message.incref()
        message.tracked = True
        self.begun.append(message.offset)
        task = asyncio.ensure_future(self._agent(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def answer(self, message: ConcurrentMessage, size: int = 10) -> None:
        """Send the record's offset, padded to this many digits, and acknowledge the record."""
        value = b"%0*d" % (size, message.offset)
        message.batch.send(Output("out", message.value.key, value))
        message.ack(self)
