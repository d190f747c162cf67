"""If the broker aborts transactions that take too long, the exactly-once partition makes smaller ones."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from types import MappingProxyType, SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from distributions.engine.tests.partition import Partition, Producer, echo, record, table
from distributions.engine.tests.simulation.broker import Broker, Transaction
from distributions.engine.tests.simulation.loop import Loop
from distributions.engine.tests.simulation.network import Network
from distributions.engine.tests.simulation.process import ExactlyOnceProcess
from faust_eos.batch import Batch, Tick
from faust_eos.health import Watch
from faust_eos.options import Options
from faust_eos.transaction import GROW_AFTER, LEAST_BYTES, Output, Slices, transactional_id

APP, SOURCE, OUT = "app", TopicPartition("in", 0), TopicPartition("out", 0)
TIMERS = "timers"
LIMIT, LOOK = 120.0, 5.0
DUE_MS = 1000


def changes_of(batch: Any) -> list[tuple[bytes, bytes | None]]:
    return list(batch.tables[TIMERS].items())


TABLES = MappingProxyType(
    {
        TIMERS: SimpleNamespace(
            **vars(table(TIMERS, SimpleNamespace(changes=changes_of))),
            name=TIMERS,
            deadline=lambda row: int(row) or None,
        )
    }
)


class Reminder(ExactlyOnceProcess):
    """A worker that copies its source and keeps a deadline for each record. At the deadline, it sends the key."""

    async def agent(self) -> None:
        async for event in self.events():
            batch, work = event.message.batch, event.value
            await self.take_its_time()
            if isinstance(work, Tick):
                for name, key in work.due:
                    batch.tables[name][key] = None
                    batch.send(Output(OUT.topic, key, b"due", partition=OUT.partition))
            else:
                for record in work:
                    batch.tables[TIMERS][record.key] = b"%d" % DUE_MS
                    batch.send(Output(OUT.topic, record.key, b"read", partition=OUT.partition))


class World:
    """One worker under a watchdog. `seconds_of` says how long the broker takes for a transaction."""

    def __init__(self, seconds_of: Callable[[Transaction], float], **options: Any) -> None:
        self.now_ms = 0
        self.loop = Loop()
        self.network = Network(self.loop)
        self.broker = Broker(self.network.post)
        self.options = Options(clock=lambda: self.now_ms, **options)
        self.worker = Reminder("w", self.network, self.broker, self.options, TABLES, APP)
        self.seconds_of = seconds_of
        self.tried: list[int] = []
        """Number of outputs of each transaction, including the aborted ones."""
        self.stalled: str | None = None
        self._watch = Watch(LIMIT, 0.0, 2 * LOOK)
        self._looked = 0.0
        self.worker.start(self.loop)
        self.worker.assign(self.loop, SOURCE)

    def produce(self, number: int) -> None:
        self.broker.append(SOURCE, [(b"%04d" % n, b"", 0, ()) for n in range(number)])

    def run(self, seconds: float, due: int | None = None) -> None:
        """Run until the watchdog finds a stall, time is up, or this many deadlines are met: idle ticks cost time."""
        end, seen = self.loop.time() + seconds, 0
        while self.loop.time() < end and self.stalled is None:
            if due is not None and len(self.broker.committed) > seen:
                seen = len(self.broker.committed)
                if len(self.outputs(b"due")) >= due:
                    return
            if (call := self.network.next_call()) is not None and call.name == "commit":
                self._commit_slowly()
            self.network.step()
            self._look()

    def _commit_slowly(self) -> None:
        """Wait for the duration of the transaction at its end. The coordinator aborts it if that is too long."""
        [transaction] = [one for one in self.broker._current.values() if not one.outcome]
        self.tried.append(sum(record.topic == OUT.topic for record in transaction.written))
        longest = self.options.transaction_timeout_seconds
        takes = self.seconds_of(transaction)
        self._pass(min(takes, longest + 1.0))
        if takes > longest:
            self.broker.time_out(transactional_id(APP, SOURCE))

    def _pass(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.loop.pass_until(self.loop.time() + 1.0)
            self.loop.run_ready()
            self._look()

    def _look(self) -> None:
        """Check as often as the watchdog does."""
        now = self.loop.time()
        if now < self._looked + LOOK or self.stalled is not None:
            return
        self._looked = now
        looking = self.worker.partition.to_do(self.broker.log(SOURCE).end)
        try:
            looking.send(None)
        except StopIteration as answer:
            self.stalled = self._watch.look(answer.value, now)

    def outputs(self, value: bytes) -> list[bytes]:
        """Return the keys of the committed outputs with this value, in order."""
        committed = [record for transaction in self.broker.committed for record in transaction.written]
        found = [record.key for record in committed if record.topic == OUT.topic and record.value == value]
        return sorted(key for key in found if key is not None)

    def close(self) -> None:
        self.worker.kill(self.loop)


def outputs_of(transaction: Transaction) -> int:
    return sum(record.topic == OUT.topic for record in transaction.written)


def test_slow_transaction_is_retried_at_half_its_size() -> None:
    """The coordinator's timeout is shorter than a commit's, so the producer is fenced."""
    with closing(World(outputs_of)) as world:
        world.produce(100)
        world.run(600)
        assert world.tried[:4] == [100, 50, 25, 12]
        assert world.outputs(b"read") == [b"%04d" % n for n in range(100)]
        assert world.stalled is None


def test_deadlines_due_together_shrink_their_transactions() -> None:
    """Two keys take longer than a transaction may. Halving 512 keys to one takes longer than the watchdog waits."""
    with closing(
        World(lambda _: 0.0, tick_seconds=0.01)
    ) as world:  # short enough that the watchdog hardly ever finds it idle
        world.produce(512)
        world.run(5)
        world.tried.clear()
        world.seconds_of = lambda transaction: 20.0 * (outputs_of(transaction) - 1)
        world.now_ms = DUE_MS
        world.run(10_000, due=512)
        assert world.tried[:11] == [512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1]
        assert world.stalled is None
        assert world.outputs(b"due") == [b"%04d" % n for n in range(512)]


def test_deadlines_met_one_transaction_at_a_time_are_progress() -> None:
    """While the deadlines are met, the source offset stays unchanged for longer than the watchdog waits."""
    with closing(World(lambda _: 0.0, tick_keys=2)) as world:
        world.produce(64)
        world.run(5)
        world.seconds_of = lambda _: LOOK
        world.now_ms = DUE_MS
        world.run(600)
        assert world.stalled is None
        assert world.outputs(b"due") == [b"%04d" % n for n in range(64)]


def test_keys_due_together_share_one_lookup() -> None:
    with closing(World(lambda _: 0.0, tick_keys=1, tick_seconds=2.0)) as world:
        world.produce(20)
        world.run(5)
        world.now_ms = DUE_MS
        began = world.loop.time()
        world.run(100, due=20)
        assert len(world.outputs(b"due")) == 20
        assert world.loop.time() - began < 3 * world.options.tick_seconds


MOST, MOST_BYTES = 2000, 1 << 20


@given(st.lists(st.integers(0, 3 << 20), min_size=1, max_size=50), st.integers(1, 20))
def test_slice_of_several_records_is_bounded_in_bytes(sizes: list[int], most: int) -> None:
    number = Slices(most, MOST_BYTES, MOST_BYTES).take(sizes)
    assert 1 <= number <= min(most, len(sizes))
    assert number == 1 or sum(sizes[:number]) <= MOST_BYTES
    assert number in (most, len(sizes)) or sum(sizes[: number + 1]) > MOST_BYTES


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3000)), max_size=200))
def test_slice_after_a_timeout_is_at_most_half(history: list[tuple[bool, int]]) -> None:
    slices = Slices(MOST, MOST_BYTES, 8 * MOST_BYTES)
    for timed_out, available in history:
        number = slices.take([1000] * available)
        if not timed_out:
            slices.committed(number)
            continue
        slices.timed_out(number, 1000 * number, 3000 * number)
        assert slices.take([1000] * 3000) <= max(1, number // 2)
        assert slices.most_written <= max(LEAST_BYTES, 3000 * number // 2)


@given(st.integers(1, MOST), st.integers(1, 5_000))
def test_slow_broker_costs_few_timeouts_and_receives_everything(capacity: int, records: int) -> None:
    slices, left, timeouts = Slices(MOST, MOST_BYTES, MOST_BYTES), records, 0
    while left:
        number = slices.take([1] * left)
        if number > capacity:
            timeouts += 1
            slices.timed_out(number, number, number)
        else:
            slices.committed(number)
            left -= number
    assert timeouts <= 11 or (timeouts - 11) * GROW_AFTER * max(1, capacity // 2) <= records


def test_slices_regrow_soon_after_an_outage() -> None:
    slices = Slices(MOST, MOST_BYTES, MOST_BYTES)
    for _ in range(20):
        slices.timed_out(slices.take([100] * MOST), 100, 100)
    for _ in range(11 * GROW_AFTER):
        slices.committed(slices.take([100] * MOST))
    assert slices.take([100] * MOST) == MOST


async def writing(work: Any, batch: Batch) -> None:
    """Write 1 MiB for each record, and take no more records than there is room for."""
    written = done = 0
    for one in work:
        if written >= batch.most_bytes:
            break
        batch.send(echo(one, size=1 << 20))
        written += 1 << 20
        done += 1
    batch.take_first(done)


async def test_broker_that_times_out_gets_smaller_slices() -> None:
    partition = Partition(writing, producer=Producer(most_bytes=3 << 20))
    await partition.process([record(offset) for offset in range(50)])
    assert len(partition.values("out")) == 50
    assert partition.producer.tried[:2] == [(8 << 20) + 11 - 3, (4 << 20) + 4]
    refused = [size for size in partition.producer.tried if size > 3 << 20]
    assert len(refused) <= 5


async def test_transaction_stays_near_its_bound_whatever_records_lead_to() -> None:
    partition = Partition(writing, max_written_bytes=4 << 20)
    await partition.process([record(offset) for offset in range(50)])
    assert max(partition.producer.tried) < (5 << 20)


async def test_eight_hundred_large_records_make_many_transactions() -> None:
    async def agent(work: Any, batch: Batch) -> None:
        sizes.append(sum(len(one.value) for one in work))
        await asyncio.sleep(0)

    sizes: list[int] = []
    partition = Partition(agent)
    body = record(0, size=600_000).value
    records = [record(offset, size=0) for offset in range(800)]
    for one in records:
        one.value = body
    await partition.process(records)
    assert sum(sizes) == 800 * 600_000
    assert max(sizes) <= 1 << 20
