"""Turns are shared fairly between groups, and large work leaves the event loop to small requests."""

import asyncio
import time

from afterword.streams.tasks import RESTS, STEP_SECONDS, FairTurns, Paced, paced


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Work:
    """Work that takes turns, and ends when it is told to."""

    def __init__(self, turns: FairTurns) -> None:
        self._turns = turns
        self.running: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str, size: int = 0) -> None:
        """Begin work of the group that is named by the first letter."""

        async def work() -> None:
            async with self._turns.of(name[0], size):
                self.running[name] = asyncio.Event()
                await self.running[name].wait()
                del self.running[name]

        self.tasks[name] = asyncio.create_task(work())
        await settled()

    async def end(self, name: str) -> None:
        self.running[name].set()
        await self.tasks[name]
        await settled()

    async def end_all(self) -> list[str]:
        """End what runs, again and again, and return the order."""
        order = []
        while self.running:
            order.append(next(iter(self.running)))
            await self.end(order[-1])
        return order


async def test_next_turn_goes_to_the_group_with_fewest() -> None:
    work = Work(FairTurns(each=2, total=3))
    for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        await work.begin(name)
    assert [*work.running] == ["a1", "a2", "b1"]
    await work.end("a1")
    assert [*work.running] == ["a2", "b1", "c1"], "c had none, although a3 and b2 came earlier"
    await work.end_all()


async def test_smaller_work_of_a_group_comes_first() -> None:
    work = Work(FairTurns())
    for name, size in {"a1": 0, "a2": 9, "a3": 1}.items():
        await work.begin(name, size)
    assert await work.end_all() == ["a1", "a3", "a2"]


async def test_new_group_does_not_overtake_others_for_long() -> None:
    work = Work(FairTurns(each=1, total=1))
    await work.begin("a0")
    for n in range(1, 6):
        await work.begin(f"a{n}")
        await work.end(f"a{n - 1}")
    for name in ("a6", "b1", "b2", "b3"):
        await work.begin(name)
    order = await work.end_all()
    assert order.index("a6") < order.index("b3")


async def test_cancelled_work_leaves_its_turn_to_others() -> None:
    work = Work(FairTurns())
    for name in ("a1", "a2", "a3"):
        await work.begin(name)
    for name in ("a2", "a1"):
        work.tasks[name].cancel()
        await settled()
    assert "a3" in work.running
    await work.end("a3")


async def test_work_cancelled_together_with_the_running_gets_no_turn() -> None:
    work = Work(FairTurns())
    for name in ("a1", "a2", "a3"):
        await work.begin(name)
    work.tasks["a1"].cancel()
    work.tasks["a2"].cancel()
    await settled()
    assert work.tasks["a1"].cancelled()
    assert "a3" in work.running
    await work.end("a3")


async def test_group_rests_after_its_work_while_others_begin() -> None:
    loop, turns = asyncio.get_running_loop(), FairTurns(rests=3)
    began = loop.time()
    async with turns.of("a"):
        await asyncio.sleep(0.05)
    worked = loop.time() - began
    async with turns.of("b"):
        assert loop.time() - began < 2 * worked, "another group does not wait"
    async with turns.of("a"):
        assert loop.time() - began >= 4 * worked


async def test_all_paced_work_together_leaves_most_of_the_loop() -> None:
    worked = 0.0

    async def work() -> None:
        nonlocal worked
        async for _ in paced(range(10)):
            began = time.thread_time()
            while time.thread_time() - began < 2 * STEP_SECONDS:
                pass
            worked += time.thread_time() - began

    began = time.monotonic()
    await asyncio.gather(work(), work(), work())
    assert time.monotonic() - began >= (1 + RESTS) * worked * 0.9


async def test_step_that_many_waited_for_is_rested_for_once() -> None:
    works = [Paced() for _ in range(20)]
    began = time.thread_time()
    while time.thread_time() - began < 2 * STEP_SECONDS:
        pass
    before, took = time.monotonic(), time.thread_time() - began
    await asyncio.gather(*(work.rest() for work in works))
    assert time.monotonic() - before < 10 * (1 + RESTS) * took


async def test_single_paced_item_needs_no_rest() -> None:
    async for _ in paced([1]):
        began = time.thread_time()
        while time.thread_time() - began < 20 * STEP_SECONDS:
            pass
        before, took = time.monotonic(), time.thread_time() - began
    assert time.monotonic() - before < took
