"""A record on which the agent fails becomes a dead letter, and its neighbours are handled."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from hypothesis import given
from hypothesis import strategies as st

from distributions.engine.tests.partition import TABLE, Partition, Producer, echo, record
from distributions.engine.tests.simulation.broker import Broker
from distributions.engine.tests.simulation.loop import Loop
from distributions.engine.tests.simulation.network import Network
from distributions.engine.tests.simulation.process import ExactlyOnceProcess
from faust_eos.batch import Batch, Tick
from faust_eos.database import DatabasePosition
from faust_eos.errors import AgentFailed, BatchClosed, EverythingFails, OutputRefused
from faust_eos.failures import Breaker
from faust_eos.options import Options
from faust_eos.transaction import Output

SECRET = "the contents of a message"


async def echoing(work: Any, batch: Batch) -> None:
    for one in work:
        batch.send(echo(one))


def failing_on(is_bad: Callable[[Any], bool]) -> Any:
    async def agent(work: Any, batch: Batch) -> None:
        for one in work:
            batch.send(echo(one))
            batch.tables[TABLE][one.key] = b"0"
            if is_bad(one):
                raise KeyError(SECRET)

    return agent


LINES = Path(__file__).read_text().splitlines()
LINE = next(number for number, line in enumerate(LINES, 1) if "raise KeyError" in line)


@given(st.sets(st.integers(0, 59)), st.integers(1, 60), st.integers(1, 8))
async def test_every_record_is_handled_once_or_dead_lettered(bad: set[int], number: int, max_batch: int) -> None:
    partition = Partition(
        failing_on(lambda one: one.offset in bad), breaker=Breaker(failures=1000), max_batch=max_batch, agent_retries=1
    )
    await partition.process([record(offset) for offset in range(number)])
    assert partition.values("out") == [b"%d" % n for n in range(number) if n not in bad]
    dead = [int((value or b"").split()[0]) for value in partition.values("in.dlq")]
    assert dead == sorted(n for n in bad if n < number)
    assert partition.committed == number
    assert {key for name, key in partition.database._files.rows if name == TABLE} == {
        b"%d" % n for n in range(number) if n not in bad
    }


async def test_failing_record_is_retried_alone_and_described_without_contents() -> None:
    partition = Partition(failing_on(lambda one: one.offset == 700), agent_retries=3)
    await partition.process([record(offset) for offset in range(1000)])
    assert partition.events.count([700]) == 4
    assert max(sum(699 in event for event in partition.events), sum(701 in event for event in partition.events)) < 12
    assert partition.values("in.dlq") == [b"700 KeyError at %s:%d" % (__name__.encode(), LINE)]
    assert SECRET not in repr(partition.outputs)


async def test_temporarily_failing_record_is_no_dead_letter() -> None:
    left = [4]

    def fails_four_times(one: Any) -> bool:
        left[0] -= one.offset == 3
        return one.offset == 3 and left[0] >= 0

    partition = Partition(failing_on(fails_four_times))
    await partition.process([record(offset) for offset in range(8)])
    assert len(partition.values("out")) == 8
    assert not partition.values("in.dlq")


async def test_worker_stops_without_commit_when_everything_fails() -> None:
    partition = Partition(failing_on(lambda _: True), breaker=Breaker(failures=20), agent_retries=1)
    with pytest.raises(
        EverythingFails, match=r"(?s)20 records with different keys .* on in-0, with\s+KeyError"
    ) as stopped:
        await partition.process([record(offset) for offset in range(1000)])
    assert SECRET not in str(stopped.value)
    assert not partition.producer.transactions


async def test_many_failing_records_of_one_key_stop_nothing() -> None:
    partition = Partition(failing_on(lambda one: one.key == b"bad"), breaker=Breaker(failures=20), agent_retries=0)
    await partition.process([record(offset, b"bad") for offset in range(100)] + [record(100)])
    assert len(partition.values("in.dlq")) == 100
    assert partition.values("out") == [b"100"]


async def test_success_between_failures_blames_the_records() -> None:
    partition = Partition(failing_on(lambda one: one.offset % 8 != 7), breaker=Breaker(failures=8), agent_retries=0)
    await partition.process([record(offset) for offset in range(80)])
    assert len(partition.values("in.dlq")) == 70


async def test_deliberate_stop_is_neither_retried_nor_dead_lettered() -> None:
    async def agent(work: Any, _: Batch) -> None:
        raise NotADirectoryError("the configuration is wrong")

    partition = Partition(agent)
    with pytest.raises(AgentFailed, match="the configuration is wrong"):
        await partition.process([record(0), record(1)])
    assert len(partition.events) == 1
    assert not partition.producer.transactions


async def test_write_after_the_end_of_its_batch_stops_worker() -> None:
    given: list[Batch] = []

    async def agent(_: Any, batch: Batch) -> None:
        given.append(batch)

    partition = Partition(agent)
    await partition.process([record(0)])
    with pytest.raises(BatchClosed):
        given[0].send(echo(record(0)))
    assert [type(error) for error in partition.errors] == [BatchClosed]
    assert not partition.outputs


async def test_failing_record_without_dead_letter_queue_stops_the_worker() -> None:
    partition = Partition(failing_on(lambda one: one.offset == 5), reject=False, agent_retries=2)
    with pytest.raises(AgentFailed):
        await partition.process([record(offset) for offset in range(10)])
    assert partition.events.count([5]) == 3
    assert partition.committed == 5


async def test_refused_outputs_become_dead_letters_in_their_transaction() -> None:
    producer = Producer(refuses=lambda output: output.topic == "out" and output.value in (b"3", b"4", b"40"))
    partition = Partition(echoing, producer=producer, max_batch=16)
    await partition.process([record(offset) for offset in range(50)])
    assert partition.values("out") == [b"%d" % n for n in range(50) if n not in (3, 4, 40)]
    reason = b"topic out refuses a record with InvalidRecord (87)"
    assert partition.values("in.dlq") == [b"%d %s" % (n, reason) for n in (3, 4, 40)]
    assert partition.committed == 50


async def test_refused_output_stops_the_worker_without_dead_letter_queue() -> None:
    partition = Partition(echoing, reject=False, producer=Producer(refuses=lambda output: output.value == b"5"))
    with pytest.raises(AgentFailed, match=r"topic out refuses a record with InvalidRecord \(87\)"):
        await partition.process([record(offset) for offset in range(10)])
    assert partition.committed == 5


async def test_refused_dead_letter_stops_the_transaction() -> None:
    partition = Partition(echoing, producer=Producer(refuses=lambda output: output.key == b"5"))
    with pytest.raises(AgentFailed, match=r"topic in.dlq refuses a record"):
        await partition.process([record(offset) for offset in range(10)])
    assert partition.committed == 5


async def test_topic_that_refuses_every_output_stops_the_transaction() -> None:
    partition = Partition(
        echoing, producer=Producer(refuses=lambda output: output.topic == "out"), breaker=Breaker(failures=5)
    )
    with pytest.raises(EverythingFails, match="topic out refuses a record"):
        await partition.process([record(offset) for offset in range(20)])
    assert not partition.producer.transactions


async def test_deadline_with_a_refused_output_is_skipped() -> None:
    async def agent(work: Tick, batch: Batch) -> None:
        for _, key in work.due:
            batch.send(Output("out", key, key))
            batch.tables[TABLE][key] = b"0"

    partition = Partition(agent, producer=Producer(refuses=lambda output: output.value == b"3"))
    rows = [(b"%d" % n, b"%d" % (n + 1)) for n in range(8)]
    partition.database.write({TABLE: rows}, DatabasePosition(source=5))
    more = True
    while more:
        try:
            more = await partition.session.tick(100)
        except OutputRefused:
            partition.open()
    assert sorted(output.value for output in partition.outputs) == [b"%d" % n for n in range(8) if n != 3]


async def test_deadline_on_which_the_agent_fails_is_skipped_alone() -> None:
    met: list[bytes] = []

    async def agent(work: Tick, batch: Batch) -> None:
        for _, key in work.due:
            if key == b"3":
                raise KeyError(SECRET)
            batch.tables[TABLE][key] = b"0"
            met.append(key)

    partition = Partition(agent, agent_retries=1)
    rows = [(b"%d" % n, b"%d" % (n + 1)) for n in range(8)]
    partition.database.write({TABLE: rows}, DatabasePosition(source=5))
    while await partition.session.tick(100):
        pass
    assert sorted(set(met)) == [b"%d" % n for n in range(8) if n != 3]
    assert partition.database.due(100, 10) == [(TABLE, b"3")]
    assert partition.committed == 5


async def test_leftovers_of_the_agent_come_with_the_next_event() -> None:
    async def agent(work: Any, batch: Batch) -> None:
        for one in work[:3]:
            batch.send(echo(one))
        batch.take_first(min(3, len(work)))

    partition = Partition(agent)
    await partition.process([record(offset) for offset in range(10)])
    assert partition.values("out") == [b"%d" % n for n in range(10)]
    assert [len(event) for event in partition.events] == [10, 7, 4, 1]


async def test_agent_that_defers_gets_the_same_records_without_commit() -> None:
    waits = 3

    async def agent(work: Any, batch: Batch) -> None:
        nonlocal waits
        waits -= 1
        if waits >= 0:
            batch.take_first(0)
            return
        for one in work:
            batch.send(echo(one))

    partition = Partition(agent)
    await partition.process([record(offset) for offset in range(5)])
    assert partition.events == [[0, 1, 2, 3, 4]] * 4
    assert [offset for offset, _ in partition.producer.transactions] == [5]


async def test_dead_letters_before_a_deferred_record_are_committed() -> None:
    has_waited = False

    async def agent(work: Any, batch: Batch) -> None:
        nonlocal has_waited
        if work[0].offset == 0:
            raise KeyError(SECRET)
        if not has_waited:
            has_waited = True
            batch.take_first(0)

    partition = Partition(agent, agent_retries=0)
    await partition.process([record(offset) for offset in range(3)])
    assert len(partition.values("in.dlq")) == 1
    assert next(offset for offset, _ in partition.producer.transactions) == 1
    assert partition.committed == 3


SOURCE, OUT = TopicPartition("in", 0), TopicPartition("out", 0)


class Copier(ExactlyOnceProcess):
    """Worker of an app without tables that copies its source."""

    async def agent(self) -> None:
        async for event in self.events():
            batch = event.message.batch
            for taken in event.value:
                batch.send(Output(OUT.topic, taken.key, taken.value, partition=OUT.partition))


class World:
    def __init__(self) -> None:
        self.loop = Loop()
        self.network = Network(self.loop)
        self.broker = Broker(self.network.post)
        self.workers: list[Copier] = []

    def take(self) -> Copier:
        """Give the partition to a new worker."""
        worker = Copier(f"w{len(self.workers)}", self.network, self.broker, Options(clock=lambda: 0), {}, "copier")
        self.workers.append(worker)
        worker.start(self.loop)
        worker.assign(self.loop, SOURCE)
        return worker

    def close(self) -> None:
        for worker in self.workers:
            worker.kill(self.loop)

    def produce(self, *values: bytes) -> None:
        self.broker.append(SOURCE, [(None, value, 0, ()) for value in values])

    def go_on(self, steps: int = 60) -> None:
        for _ in range(steps):
            self.network.step()

    @property
    def copied(self) -> list[bytes | None]:
        return [record.value for transaction in self.broker.committed for record in transaction.written]


def test_app_without_tables_starts_after_its_last_transaction() -> None:
    world = World()
    world.broker.slow_down_the_group(True)
    world.produce(b"a", b"b")
    first = world.take()
    world.go_on()
    assert world.copied == [b"a", b"b"]
    first.kill(world.loop)
    world.take()
    world.go_on()
    assert world.copied == [b"a", b"b"]
    world.broker.slow_down_the_group(False)
    world.produce(b"c")
    world.go_on()
    assert world.copied == [b"a", b"b", b"c"]
    assert [worker.error for worker in world.workers] == [None, None]
    world.close()


def test_partition_that_fails_during_a_rebalance_opens_after_it() -> None:
    """Until the assignment is known, another worker may own the partition, and opening it would fence that worker."""
    world = World()
    worker = world.take()
    world.go_on()
    worker.in_group.clear()
    world.produce(b"a")
    world.go_on()
    assert world.copied == [b"a"], "it went on working"
    world.produce(b"b")
    while (call := world.network.next_call()) is None or call.name != "commit":
        world.network.step()
    world.network.fail(call, KafkaConnectionError(), after=False)
    world.go_on()
    next_owner = world.broker.open_producer("copier-in-0")
    world.go_on()
    assert world.broker.open_producer("copier-in-0") == next_owner + 1, "it has fenced its next owner"
    assert world.copied == [b"a"]
    with world.loop.running():
        worker.in_group.set()
    world.go_on()
    assert world.copied == [b"a", b"b"]
    assert worker.error is None
    world.close()


def test_partition_returned_by_another_worker_continues_after_its_records() -> None:
    """The first worker missed both rebalances, so it keeps its session, which the second worker has fenced."""
    world = World()
    first = world.take()
    world.produce(b"a")
    world.go_on()
    first.frozen = True
    second = world.take()
    world.produce(b"b")
    world.go_on()
    assert world.copied == [b"a", b"b"]
    second.kill(world.loop)
    first.frozen = False
    world.produce(b"c")
    world.go_on()
    assert world.copied == [b"a", b"b", b"c"]
    assert first.error is None
    world.close()


def test_unstarted_batch_of_a_revoked_partition_is_skipped() -> None:
    """The agent is busy with another partition, and would later find the database of this partition closed."""
    world = World()
    worker = world.take()
    world.go_on()
    given: list[Any] = []

    async def keep(message: Any) -> None:
        message.incref()
        given.append(message)

    worker.callback = keep  # type: ignore[method-assign]
    world.produce(b"a")
    world.go_on()
    assert [message.generation_id for message in given] == [worker.app.consumer_generation_id]
    with world.loop.running():
        world.loop.create_task(worker.partition.stop(1.0))
    world.go_on()
    assert given[0].generation_id != worker.app.consumer_generation_id
    assert worker.partition.task.done()
    world.close()
