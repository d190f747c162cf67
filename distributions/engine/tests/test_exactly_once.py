"""A partition that is processed exactly once by an app without tables: where it begins, and what it fences."""

from pathlib import Path
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError

from distributions.engine.tests.simulation.broker import Broker
from distributions.engine.tests.simulation.database import MemoryDatabase
from distributions.engine.tests.simulation.loop import Loop
from distributions.engine.tests.simulation.network import Network
from distributions.engine.tests.simulation.process import Process
from faust_eos.batch import Batches
from faust_eos.exactly_once import ExactlyOncePartition
from faust_eos.options import Options
from faust_eos.transaction import Output

SOURCE, OUT = TopicPartition("in", 0), TopicPartition("out", 0)


class Copier(Process):
    """Worker of an app without tables that copies its source."""

    def open_database(self, where: str, deadlines: Any) -> MemoryDatabase:
        """Open an empty database, because each worker has its own disk."""
        return MemoryDatabase(Path(where), deadlines, disk={}, clock=self.app.engine.clock)

    def new_partition(self, source: TopicPartition) -> ExactlyOncePartition:
        return ExactlyOncePartition(self, source, Batches())

    async def agent(self) -> None:
        async for event in self.events():
            batch = event.message.batch
            for record in event.value:
                batch.send(Output(OUT.topic, record.key, record.value, partition=OUT.partition))


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
