import asyncio
from collections import defaultdict
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.app import Job, Lanes
from afterword.streams.errors import LaneStopped


class Owner:
    """Keeps what was reported, and hands out handlers that note when they run."""

    def __init__(self) -> None:
        self.errors: list[tuple[str, BaseException]] = []
        self.lanes: Lanes[str] = Lanes(lambda key, error: self.errors.append((key, error)))
        self.done: dict[str, list[int]] = defaultdict(list)
        self.running: dict[str, int] = defaultdict(int)

    def handler(self, key: str, number: int, turns: int = 0) -> Job:
        async def handle() -> None:
            self.running[key] += 1
            assert self.running[key] == 1
            for _ in range(turns):
                await asyncio.sleep(0)
            self.running[key] -= 1
            self.done[key].append(number)

        return handle

    def gated(self, key: str, number: int, gate: asyncio.Event) -> Job:
        async def handle() -> None:
            await gate.wait()
            self.done[key].append(number)

        return handle


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


@given(work=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5), st.integers(0, 3)), max_size=40))
async def test_each_key_runs_one_record_at_a_time(work: list[tuple[str, int, int]]) -> None:
    owner = Owner()
    for number, (key, turns, pause) in enumerate(work):
        owner.lanes.submit(key, owner.handler(key, number, turns))
        for _ in range(pause):
            await asyncio.sleep(0)
    await until(lambda: not owner.lanes.in_flight)
    assert owner.errors == []
    assert owner.done == {key: [n for n, (k, *_) in enumerate(work) if k == key] for key in {k for k, *_ in work}}
    assert owner.lanes.in_flight == 0


async def test_slow_key_delays_no_other() -> None:
    owner, gate = Owner(), asyncio.Event()
    owner.lanes.submit("slow", owner.gated("slow", 0, gate))
    for number in range(100):
        owner.lanes.submit("quick", owner.handler("quick", number))
    await until(lambda: owner.done["quick"] == list(range(100)))
    assert owner.done["slow"] == []
    gate.set()
    await until(lambda: not owner.lanes.in_flight)
    assert owner.done["slow"] == [0]


@pytest.mark.parametrize("error", [ValueError("broken"), asyncio.CancelledError()], ids=["fails", "cancels itself"])
async def test_ended_lane_is_reported_and_returns_once_cancelled(error: BaseException) -> None:
    async def end() -> None:
        raise error

    owner = Owner()
    owner.lanes.submit("a", end)
    owner.lanes.submit("a", owner.handler("a", 1))
    owner.lanes.submit("b", owner.handler("b", 1))
    await until(lambda: bool(owner.errors) and owner.done["b"] == [1])
    assert [(key, type(raised)) for key, raised in owner.errors] == [("a", type(error))]
    assert (owner.done["a"], owner.lanes.in_flight) == ([], 0)
    with pytest.raises(LaneStopped):
        owner.lanes.submit("a", owner.handler("a", 2))
    await owner.lanes.cancel()
    owner.lanes.submit("a", owner.handler("a", 3))
    await until(lambda: not owner.lanes.in_flight)
    assert owner.done["a"] == [3]


async def test_cancelling_ends_running_and_queued_work() -> None:
    owner, never = Owner(), asyncio.Event()
    for number in range(3):
        owner.lanes.submit("a", owner.gated("a", number, never))
    owner.lanes.submit("b", owner.handler("b", 0))
    await until(lambda: owner.lanes.in_flight == 3)
    await owner.lanes.cancel()
    assert (owner.done["a"], owner.done["b"], owner.errors) == ([], [0], [])
    assert owner.lanes.in_flight == 0


async def test_lane_cancelled_before_its_first_step_leaks_nothing() -> None:
    owner = Owner()
    owner.lanes.submit("a", owner.handler("a", 0))
    await owner.lanes.cancel()
    owner.lanes.submit("a", owner.handler("a", 1))
    await until(lambda: not owner.lanes.in_flight)
    assert owner.done["a"] == [1]


async def test_finished_lanes_leave_nothing() -> None:
    owner = Owner()
    for number in range(50):
        owner.lanes.submit(f"k{number}", owner.handler(f"k{number}", 0))
    await until(lambda: not owner.lanes.in_flight)
    assert not owner.lanes._lanes
    assert not owner.lanes._tasks
    assert not owner.lanes._stopped
