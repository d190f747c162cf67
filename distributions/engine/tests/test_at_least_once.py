"""A partition of at-least-once records: commits, repeated handling, and progress for the watchdog."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import IllegalOperation, InvalidTimestampError, KafkaConnectionError, KafkaError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata
from structlog.testing import capture_logs

from distributions.engine.tests.simulation.clients import Builder
from distributions.engine.tests.simulation.virtual_time import run_in_virtual_time
from faust_eos.at_least_once import AtLeastOnce, AtLeastOncePartition, ConcurrentMessage, mark_idle, mark_working
from faust_eos.errors import EverythingFails
from faust_eos.health import Watch
from faust_eos.options import Options
from faust_eos.transaction import Output
from faust_eos.window import Progress, reach

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
        self.seeks = 0

    def seek(self, _: TopicPartition, offset: int) -> None:
        self.seeks += 1
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


LIMIT, LOOK = 120.0, 5.0
METADATA_BYTES = 19
"""So small that no record is handed over more than 32 offsets beyond the first unfinished one."""


async def first_stall(worker: Worker, seconds: float) -> tuple[float, str] | None:
    """Check the partition every five seconds, as the watchdog does. Return when it stalled, and in which step."""
    watch, loop = Watch(LIMIT, 0.0, 2 * LOOK), asyncio.get_running_loop()
    while loop.time() < seconds:
        await asyncio.sleep(LOOK)
        stalled = watch.look(await worker.partition.to_do(worker.broker.end), loop.time())
        if stalled is not None:
            return loop.time(), stalled
    return None


@pytest.mark.parametrize("takes_seconds", [0.0, 4.0, 20.0])
def test_commits_that_keep_failing_stall_despite_an_open_partition(takes_seconds: float) -> None:
    async def story() -> tuple[float, str] | None:
        broker = Broker(5, bytes_per_second=50 / takes_seconds if takes_seconds else float("inf"))
        broker.before_commit = always(KafkaError("Unexpected error during batch delivery"))
        worker = Worker(broker)
        found = await first_stall(worker, 600)
        await worker.partition.stop(0)
        return found

    found = run_in_virtual_time(story())
    assert found is not None
    assert found[1] == "nothing is committed of in-0"
    assert found[0] <= LIMIT + 2 * takes_seconds + 3 * LOOK  # halving a transaction counts as progress


def refusing(schema: AtLeastOnce, refuses: Callable[[bytes], bool]) -> tuple[Broker, list[BaseException]]:
    """Handle 40 records of which the broker refuses some outputs; return the broker and the worker's errors."""

    async def story() -> tuple[Broker, list[BaseException]]:
        broker = Broker(40)
        broker.refuses = refuses
        worker = Worker(broker, schema=schema)
        await asyncio.sleep(5)
        await worker.partition.stop(0)
        return broker, worker.errors

    return run_in_virtual_time(story())


def rejected(record: Any, _: Exception) -> Output:
    return Output("in.dlq", record.key, b"%d" % (1000 + record.offset))


def test_refused_outputs_become_dead_letters() -> None:
    broker, errors = refusing(AtLeastOnce(reject=rejected), lambda value: int(value) in (3, 4, 31))
    assert sorted(broker.outputs) == sorted([*({*range(40)} - {3, 4, 31}), 1003, 1004, 1031])
    assert broker.progress.offset == 40
    assert not errors


def test_refused_output_stops_the_worker_without_dead_letter_topic() -> None:
    broker, errors = refusing(AtLeastOnce(), lambda value: int(value) == 3)
    assert [str(error) for error in errors] == [
        "the agent failed on in-0: OutputRefused('topic out refuses a record with InvalidTimestampError (32)')"
    ]
    assert 3 not in broker.outputs


def test_refused_dead_letter_stops_the_worker() -> None:
    broker, errors = refusing(AtLeastOnce(reject=rejected), lambda value: int(value) in (3, 1003))
    assert "topic in.dlq refuses a record" in str(errors)
    assert not broker.progress.covers(3)


def test_topic_that_refuses_every_output_stops_the_worker() -> None:
    _, errors = refusing(AtLeastOnce(reject=rejected), lambda value: int(value) < 1000)
    assert [type(error) for error in errors] == [EverythingFails]


def test_retries_against_a_dead_broker_slow_to_two_seconds() -> None:
    async def story() -> list[float]:
        broker, loop, tries = Broker(1), asyncio.get_running_loop(), []

        def fail() -> None:
            tries.append(loop.time())
            raise KafkaConnectionError

        broker.before_commit = fail
        worker = Worker(broker)
        worker.app.conf.broker_heartbeat_interval = 0.2
        with capture_logs():
            await asyncio.sleep(20)
        await worker.partition.stop(0)
        return [round(later - earlier, 1) for earlier, later in pairwise(tries)]

    waits = run_in_virtual_time(story())
    assert waits[:3] == [0.3, 0.6, 1.2]
    assert set(waits[3:]) == {2.0}


@pytest.mark.parametrize(("length", "most"), [(5, 1), (200, 9)])
def test_backlog_of_conversations_is_read_with_few_seeks(length: int, most: int) -> None:
    """A consumer drops what it has fetched when it seeks, up to a megabyte."""

    async def story() -> tuple[int, int]:
        broker = Broker(200)
        broker.keys = {offset: b"%d" % (offset // length) for offset in range(200)}

        async def agent(message: ConcurrentMessage) -> None:
            await asyncio.sleep(1.0)
            await worker.answer(message)

        worker = Worker(broker, agent, AtLeastOnce(order=lambda record: record.key), max_in_flight=4)
        await asyncio.sleep(300)
        await worker.partition.stop(0)
        return broker.progress.offset, worker.kafka.seeks

    finished, seeks = run_in_virtual_time(story())
    assert finished == 200
    assert seeks <= most


def test_unfinished_records_are_named_during_failed_commits_and_reopening() -> None:
    async def story() -> set[bool]:
        async def all_but_the_last(message: ConcurrentMessage) -> None:
            if message.offset < 4:
                await worker.answer(message)

        broker = Broker(5)
        broker.before_commit = always(KafkaConnectionError())
        worker = Worker(broker, all_but_the_last)
        await asyncio.sleep(1.0)
        named = set()
        for _ in range(100):
            await asyncio.sleep(0.1)
            named.add("records of in-0 are not finished" in await worker.partition.to_do(5))
        await worker.partition.stop(0)
        return named

    assert run_in_virtual_time(story()) == {True}


def test_stop_waits_for_running_attempts_but_not_between_them() -> None:
    async def story() -> tuple[float, Broker]:
        async def agent(message: ConcurrentMessage) -> None:
            event = SimpleNamespace(message=message)
            mark_idle(event)
            with mark_working(event):
                await asyncio.sleep(3.0)
            if message.offset == 0:
                await asyncio.Event().wait()
            await worker.answer(message)

        worker = Worker(Broker(2), agent)
        await asyncio.sleep(1.0)
        began = asyncio.get_running_loop().time()
        await worker.partition.stop(30.0)
        return asyncio.get_running_loop().time() - began, worker.broker

    seconds, broker = run_in_virtual_time(story())
    assert 2.0 <= seconds < 10.0
    assert broker.outputs == [1]
    assert broker.progress == Progress(0, frozenset({1}))


def test_idle_partition_needs_no_work() -> None:
    async def story() -> list[object]:
        worker = Worker(Broker(5))
        await asyncio.sleep(5.0)
        found = [await worker.partition.to_do(5), worker.broker.outputs]
        await worker.partition.stop(0)
        return found

    assert run_in_virtual_time(story()) == [{}, [0, 1, 2, 3, 4]]


def test_only_unfinished_records_are_reported_as_expired() -> None:
    """Records 10 and 30 are unfinished. The group has finished the others up to 49, and the log begins at 50."""

    async def story() -> Worker:
        broker = Broker(60, first=50)
        before = Progress(10, frozenset(range(11, 50)) - {30})
        broker.group = OffsetAndMetadata(before.offset, before.metadata())
        worker = Worker(broker)
        await asyncio.sleep(3.0)
        await worker.partition.stop(0)
        return worker

    with capture_logs() as logs:
        worker = run_in_virtual_time(story())
    assert worker.expired == 2
    [line] = [line for line in logs if line["event"] == "records_expired"]
    assert (line["first_lost"], line["next_offset"], line["count"]) == (10, 50, 2)
    assert worker.begun == list(range(50, 60))


def test_unstable_group_offset_fails_the_opening_and_stalls() -> None:
    async def story() -> tuple[str, object]:
        broker = Broker(5)
        broker.is_stable = False
        worker = Worker(broker)
        found = await first_stall(worker, 600)
        await worker.partition.stop(0)
        return worker.partition.last_error, found

    error, found = run_in_virtual_time(story())
    assert error == "TimeoutError"
    assert found is not None


def test_halving_transactions_to_one_record_counts_as_progress() -> None:
    """One record takes 30 seconds. Halving from 64 records to one takes four minutes, twice as long as the watchdog
    waits."""

    async def story() -> tuple[list[int], object]:
        async def agent(message: ConcurrentMessage) -> None:
            await worker.answer(message, size=100)

        worker = Worker(Broker(64, bytes_per_second=100 / 30), agent, commit_timeout_seconds=40.0)
        stalled = await first_stall(worker, 400)
        await worker.partition.stop(0)
        return worker.broker.tried, stalled

    tried, stalled = run_in_virtual_time(story())
    assert stalled is None
    assert tried[:8] == [64, 32, 16, 8, 4, 2, 1, 1]


def test_reading_resumes_when_another_owner_finished_the_blocking_record() -> None:
    async def story() -> list[int]:
        async def all_but_the_first(message: ConcurrentMessage) -> None:
            if message.offset:
                await worker.answer(message)

        def overtaken() -> None:
            if worker.begun[-1] == last:
                broker.before_commit = lambda: None
                broker.group = OffsetAndMetadata(150, "")
                raise ProducerFenced

        last = reach(METADATA_BYTES)
        broker = Broker(152)
        broker.before_commit = overtaken
        worker = Worker(broker, all_but_the_first, max_in_flight=100, offset_metadata_bytes=METADATA_BYTES)
        await asyncio.sleep(20.0)
        await worker.partition.stop(0)
        assert worker.begun[: last + 1] == list(range(last + 1))
        return worker.begun[last + 1 :]

    assert run_in_virtual_time(story()) == [150, 151]


def test_transaction_aborted_as_too_slow_is_retried_in_parts() -> None:
    """The coordinator's timeout is shorter than a commit's, so the producer is fenced."""

    async def story() -> Broker:
        async def agent(message: ConcurrentMessage) -> None:
            await worker.answer(message, size=100)

        broker = Broker(64, bytes_per_second=400.0)
        broker.longest_seconds = 15.0
        worker = Worker(broker, agent)
        await asyncio.sleep(120.0)
        await worker.partition.stop(0)
        return broker

    broker = run_in_virtual_time(story())
    assert broker.outputs == list(range(64))
    assert broker.tried[:2] == [64, 32]


def test_transactions_are_bounded_in_bytes_and_regrow_after_timeouts() -> None:
    async def story() -> tuple[Broker, int]:
        async def agent(message: ConcurrentMessage) -> None:
            await worker.answer(message, size=1000)

        broker = Broker(64)
        worker = Worker(broker, agent, max_written_bytes=10_000)
        await asyncio.sleep(5.0)
        assert set(broker.tried) == {9, 1}
        broker.before_commit = always(TimeoutError())
        broker.end = 128
        await asyncio.sleep(60.0)
        broker.before_commit = lambda: None
        broker.end = 1000
        await asyncio.sleep(60.0)
        await worker.partition.stop(0)
        return broker, broker.tried[-2]

    broker, number = run_in_virtual_time(story())
    assert broker.outputs == list(range(1000))
    assert number == 9


def test_backlog_is_committed_in_few_transactions() -> None:
    async def story() -> tuple[Broker, float]:
        async def agent(message: ConcurrentMessage) -> None:
            await asyncio.sleep(0.1 + message.offset % 16 / 160)
            await worker.answer(message)
            finished.append(loop.time())

        broker, loop = Broker(1600), asyncio.get_running_loop()
        finished, committed = list[float](), list[float]()
        broker.before_commit = lambda: committed.append(loop.time())
        worker = Worker(broker, agent, max_in_flight=16)
        await asyncio.sleep(60.0)
        await worker.partition.stop(0)
        return broker, committed[-1] - finished[-1]

    broker, late = run_in_virtual_time(story())
    assert len(broker.outputs) == 1600
    assert len(broker.commits) <= 1600 / 16
    assert late < 0.05


def test_large_records_in_hand_are_limited_by_their_bytes() -> None:
    async def story() -> tuple[Broker, int]:
        async def agent(message: ConcurrentMessage) -> None:
            in_hand.add(message.offset)
            most.append(len(in_hand))
            await asyncio.sleep(1.0)
            in_hand.remove(message.offset)
            await worker.answer(message)

        in_hand, most = set[int](), list[int]()
        broker = Broker(100)
        broker.headers = {offset: [("size", bytes(1000))] for offset in range(100)}
        worker = Worker(broker, agent, max_in_flight_bytes=3500)
        await asyncio.sleep(120.0)
        await worker.partition.stop(0)
        return broker, max(most)

    broker, most = run_in_virtual_time(story())
    assert sorted(broker.outputs) == list(range(100))
    assert most == 4


@pytest.mark.parametrize(("size", "committed"), [(10, []), (1000, [0, 2, 4, 6])])
def test_finished_records_wait_a_second_unless_they_are_large(size: int, committed: list[int]) -> None:
    async def story() -> tuple[list[int], list[int]]:
        async def agent(message: ConcurrentMessage) -> None:
            if message.offset % 2:
                await asyncio.sleep(60.0)
            await worker.answer(message, size)

        worker = Worker(Broker(100), agent, max_in_flight=4, max_in_flight_bytes=1500)
        await asyncio.sleep(0.5)
        early = worker.broker.outputs
        await asyncio.sleep(1.0)
        await worker.partition.stop(0)
        return early, worker.broker.outputs

    assert run_in_virtual_time(story()) == (committed, [0, 2, 4, 6])


def always(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def once(error: Exception) -> Callable[[], None]:
    left = [error]

    def fail() -> None:
        if left:
            raise left.pop()

    return fail
