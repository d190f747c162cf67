"""A rebalance moves as few partitions as possible; partitions that stay are neither closed nor delayed."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer

from afterword.embedded.process import Process
from faust_eos.drivers import assignor_of_its_own
from tests.integration.engine.lab import Lab, laboratory, said, until
from tests.stack import Stack

PARTITIONS = 6


@pytest_asyncio.fixture
async def wide(stack: Stack, unique: Callable[[str], str], tmp_path: Path) -> AsyncIterator[Lab]:
    async with laboratory(stack.bootstrap_servers, unique("wide"), tmp_path, partitions=PARTITIONS) as ready:
        yield ready


async def test_rebalance_closes_only_partitions_that_move(wide: Lab) -> None:
    async with wide.loaded(per_second=100):
        # a machine that is too busy for a heartbeat must not cause a rebalance
        first, second = (wide.worker(name, session_seconds=60.0) for name in "ab")
        await until(lambda: owned(wide) == {first.pid: 3, second.pid: 3}, watching=wide)
        opened = len(said(first, "recovered")) + len(said(second, "recovered"))
        third = wide.worker("c", session_seconds=60.0)
        await until(lambda: owned(wide) == {first.pid: 2, second.pid: 2, third.pid: 2}, watching=wide)
        await until(lambda: [moved(worker) for worker in (first, second)] == [(2, 0, 1)] * 2, watching=wide)
        assert len(said(first, "recovered")) + len(said(second, "recovered")) == opened, "one was opened again"
        await wide.stop(third)
        await until(lambda: owned(wide) == {first.pid: 3, second.pid: 3}, watching=wide)
        await until(lambda: [moved(worker) for worker in (first, second)] == [(2, 1, 0)] * 2, watching=wide)
    await wide.all_counted()


@pytest.mark.nightly
async def test_records_and_deadlines_are_handled_while_a_rebalance_waits(wide: Lab) -> None:
    """One member is suspended, so that the others wait for it for its whole session."""
    first, second = wide.worker("a"), wide.worker("b")
    async with wide.loaded(per_second=100):
        await until(lambda: owned(wide) == {first.pid: 3, second.pid: 3}, watching=wide)
    await wide.all_counted()
    before = len(wide.counted())
    ours = next(seen.partition for seen in reversed(wide.counted()) if seen.value["pid"] == first.pid)
    rebalances = len(said(first, "rebalanced"))
    second.suspend()
    async with one_more_member(wide) as joined:
        await wide.produce([(ours, {"due_ms": 1500})])
        await until(lambda: wide.ticks(), watching=wide)
        await wide.produce([(ours, {})])
        await until(lambda: len(wide.counted()) == before + 2, watching=wide)
        assert len(said(first, "rebalanced")) == rebalances, "the rebalance was over before"
        await joined
        await until(lambda: len(said(first, "rebalanced")) > rebalances, watching=wide)
        assert moved(first) == (3, 0, 0)
    second.resume()
    await wide.produce((number, {}) for number in range(12))
    await wide.all_counted()


@asynccontextmanager
async def one_more_member(lab: Lab) -> AsyncIterator["asyncio.Task[None]"]:
    """A member of the workers' group that handles nothing, and the task in which it joins."""
    member = AIOKafkaConsumer(
        lab.source,
        bootstrap_servers=lab.brokers,
        group_id=lab.app_id,
        enable_auto_commit=False,
        partition_assignment_strategy=[assignor_of_its_own(sticky=True)],
    )
    joining = asyncio.create_task(member.start())
    try:
        yield joining
    finally:
        await asyncio.wait([joining])
        await member.stop()


def owned(lab: Lab) -> dict[int, int]:
    """Return the number of partitions whose last output came from this process."""
    last = {seen.partition: seen.value["pid"] for seen in lab.counted()}
    return {pid: list(last.values()).count(pid) for pid in last.values()}


def moved(worker: Process) -> tuple[int, int, int]:
    """Return how many partitions the worker kept, opened and closed in its last rebalance.

    Its new partitions may have outputs before it says so, and so may those that another worker has taken from it.
    """
    last = said(worker, "rebalanced")[-1]
    return last["kept"], last["opened"], last["closed"]


async def test_tick_follows_silence_and_leaves_the_source_offset(lab: Lab) -> None:
    await lab.produce([(0, {"due_ms": 300}), (0, {"due_ms": 600})])
    lab.worker()
    await until(lambda: lab.ticks(), watching=lab)
    assert [(seen.key, seen.value["n"]) for seen in lab.ticks()] == [(b"key-0", 2)]
    await lab.until_committed(2)
    assert await lab.committed() == 2
    await lab.produce([(0, {})])
    await lab.all_counted()
    assert len(lab.ticks()) == 1


@pytest.mark.nightly
async def test_steady_traffic_on_other_keys_does_not_delay_ticks(lab: Lab) -> None:
    load = asyncio.create_task(lab.load(2000, per_second=300, keys=2))
    await lab.produce([(4, {"due_ms": 500})])
    lab.worker()
    await until(lambda: lab.ticks(), watching=lab)
    assert not load.done()
    await load
    await lab.all_counted()


async def test_deadlines_survive_kills_lost_disks_and_moves(lab: Lab) -> None:
    began = time.time()
    await lab.produce([(number, {"due_ms": 5000 + 100 * number}) for number in range(4)])
    first = lab.worker("a", static=True)
    await lab.all_counted()
    first.kill()
    lab.wipe("a")
    second = lab.worker("a", static=True)
    await until(lambda: len(said(second, "recovered")) == 2 * lab.partitions, watching=lab)
    await lab.stop(second)
    lab.worker("b", static=True)
    await until(lambda: len(lab.ticks()) == 4, watching=lab)
    assert time.time() - began >= 5
    assert sorted(seen.key for seen in lab.ticks()) == [b"key-%d" % number for number in range(4)]
