"""The agent learns of deadlines in time, but never before it has read all records that might have moved them."""

import asyncio
import time

import pytest

from tests.integration.engine.lab import Lab, said, until


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
