"""Helpers for asyncio: steps that fail together, work in a thread, batches, and turns."""

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Hashable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Generic, NamedTuple, TypeVar

from afterword.streams.errors import OtherLoop, StoreRefuses, StoreUnavailable

LARGE_BYTES = 64 * 1024
TURN_SECONDS = 0.05
"""CPU time of a turn. A worker that gets a fifth of a core needs a quarter of a second for it."""
STEP_SECONDS = 0.002
"""CPU time of a step of large work in a server, after which it rests."""
RESTS = 3.0
"""Large work of a server rests this many times as long as it took."""
MOST_REST_SECONDS = 2.0

T = TypeVar("T")


async def gather_or_cancel(*steps: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run all steps, each in a task, and return their results; the first error cancels the others.

    The error is raised when they have ended. This is not a task group, which would count a cancelled step as done.
    """
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def apart(size: int, work: Callable[..., T], *given: Any) -> T:
    """Do work on this many bytes: in a thread if they are many, so that the event loop goes on."""
    return await asyncio.to_thread(work, *given) if size > LARGE_BYTES else work(*given)


class OwnLoop:
    """The event loop that a client belongs to: the first one that uses it. On another, its answers would not arrive."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None

    def require(self) -> None:
        """Raises: OtherLoop on any other loop."""
        running = asyncio.get_running_loop()
        self._loop = self._loop or running
        if running is not self._loop:
            raise OtherLoop(client=self._client)


class _Counted(threading.local):
    """What paced work of this thread's event loop has taken."""

    cpu = 0.0
    """The thread's CPU time up to which it was counted as somebody's step."""
    free_at = 0.0
    """When the next step may begin, on the monotonic clock; for all."""


_COUNTED = _Counted()


class Paced:
    """Large work in the event loop of a server, done in steps with rests, so that small requests run in between.

    All such work together takes at most 1 / (1 + RESTS) of the loop's time.
    """

    def __init__(self) -> None:
        self._began = time.thread_time()

    async def rest(self) -> None:
        """Rest if the step has taken STEP_SECONDS, without what others have already rested for."""
        cpu = time.thread_time()
        if (took := cpu - max(self._began, _COUNTED.cpu)) >= STEP_SECONDS:
            _COUNTED.cpu, now = cpu, time.monotonic()
            _COUNTED.free_at = max(_COUNTED.free_at, now) + (1 + RESTS) * min(took, TURN_SECONDS)
            await asyncio.sleep(_COUNTED.free_at - now)
            self._began = time.thread_time()


async def paced(items: Iterable[T]) -> AsyncGenerator[T, None]:
    """Yield items in steps with rests."""
    work = Paced()
    for number, item in enumerate(items):
        if number:
            await work.rest()
        yield item


def in_parts(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    """Yield the items, at most this many at a time."""
    return (items[start : start + most] for start in range(0, len(items), most))


class Job(NamedTuple):
    """A job that waits for its batch."""

    work: Any
    result: asyncio.Future[Any]


class Batches(Generic[T]):
    """Runs one batch at a time. Jobs that arrive meanwhile wait, and those of one kind form a batch.

    The kinds take turns. A job that arrives while nothing runs waits for nothing. If a batch of several fails because
    of one of its jobs, each is run by itself.
    """

    def __init__(self, run: Callable[[Any, list[T]], Awaitable[Sequence[Any]]], most: int) -> None:
        """`run` runs jobs of one kind and returns their results; a batch has at most `most`."""
        self._run = run
        self._most = most
        self._waiting: dict[Hashable, list[Job]] = {}
        """By kind. The kind whose turn is next comes first."""
        self._work: asyncio.Task[None] | None = None

    async def result(self, work: T, kind: Hashable) -> Any:
        """Run a job and return its result. Jobs of kind None are run by themselves."""
        job = Job(work, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(kind, []).append(job)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._run_waiting())  # jobs that are given together are in one batch
        return await job.result

    async def _run_waiting(self) -> None:
        while self._waiting:
            kind = next(iter(self._waiting))
            jobs, most = self._waiting.pop(kind), 1 if kind is None else self._most
            if jobs[most:]:
                self._waiting[kind] = jobs[most:]
            if not await self._answered(kind, jobs[:most]):
                for job in jobs[:most]:
                    await self._answered(kind, [job])

    async def _answered(self, kind: Hashable, jobs: Sequence[Job]) -> bool:
        """Run jobs together and answer them; return False if one of several made them fail."""
        work = asyncio.ensure_future(self._run(kind, [job.work for job in jobs]))
        await asyncio.wait([work])
        # what it calls may cancel it, as a closed client does
        error = asyncio.CancelledError() if work.cancelled() else work.exception()
        is_of_one = isinstance(error, StoreRefuses) or not isinstance(error, StoreUnavailable)
        if error is not None and len(jobs) > 1 and is_of_one:
            return False
        for at, job in enumerate(jobs):
            if job.result.done():  # the caller was cancelled
                continue
            if error is None:
                job.result.set_result(work.result()[at])
            else:
                job.result.set_exception(error)
        return True


class Waiter(NamedTuple):
    """Work that waits for its turn."""

    group: str
    size: int
    turn: asyncio.Future[None]


class FairTurns:
    """Limits how much work of each group runs at once, and in total.

    The next turn goes to the group that has the fewest, then to the one that had the fewest since it came, and there to
    the smallest work. So however much work one group has, the others wait for a few turns of it at most.

    With `rests`, a turn is given back only when that many times as long as the work took has passed, at most
    MOST_REST_SECONDS: the group's next work waits, and whoever needs no turns finds the processor free meanwhile.
    """

    def __init__(self, each: int = 1, total: int = sys.maxsize, rests: float = 0) -> None:
        self._each = each
        self._left = total
        self._rests = rests
        self._running = Counter[str]()
        self._had: dict[str, int] = {}
        """Numbers of turns of the groups that wait or run. A new group begins with the lowest, so that it can neither
        overtake the others for long nor fall behind."""
        self._waiting: list[Waiter] = []

    @property
    def running(self) -> int:
        """Number of turns that are taken."""
        return self._running.total()

    @asynccontextmanager
    async def of(self, group: str, size: int = 0) -> AsyncIterator[None]:
        """Wait for a turn of the group, and hold it while the block runs."""
        loop = asyncio.get_running_loop()
        waiter, began = Waiter(group, size, loop.create_future()), loop.time()
        self._had.setdefault(group, min(self._had.values(), default=0))
        self._waiting.append(waiter)
        try:
            self._hand_out()
            await waiter.turn
            began = loop.time()
            yield
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                self._leave(group)
            elif self._rests:
                rest = self._rests * (loop.time() - began)
                loop.call_later(min(rest, MOST_REST_SECONDS), self._give_back, group)
            else:
                self._give_back(group)

    def _give_back(self, group: str) -> None:
        self._running -= Counter([group])  # in place, and groups without turns are dropped
        self._left += 1
        self._leave(group)

    def _leave(self, group: str) -> None:
        if not self._running[group] and all(one.group != group for one in self._waiting):
            del self._had[group]
        self._hand_out()

    def if_large(self, group: str, is_large: bool) -> AbstractAsyncContextManager[None]:
        """Wait for a turn of the group if the work is large, because others wait while it is done."""
        return self.of(group) if is_large else nullcontext()

    def _hand_out(self) -> None:
        while self._left and (able := list(filter(self._is_able, self._waiting))):
            chosen = min(able, key=lambda work: (self._running[work.group], self._had[work.group], work.size))
            self._waiting.remove(chosen)
            self._running[chosen.group] += 1
            self._had[chosen.group] += 1
            self._left -= 1
            chosen.turn.set_result(None)

    def _is_able(self, work: Waiter) -> bool:
        return self._running[work.group] < self._each and not work.turn.done()  # it may have been cancelled just now


class Turn:
    """The CPU time that a task takes before it lets others run, such as a consumer group's heartbeats.

    The turn begins when the object is created.
    """

    def __init__(self, seconds: float = TURN_SECONDS) -> None:
        self._until, self._end = time.monotonic() + seconds, time.thread_time() + seconds

    @property
    def is_over(self) -> bool:
        # no more CPU time than that of the clock passes, and asking for it takes a system call
        return time.monotonic() >= self._until and time.thread_time() >= self._end

    def of(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items until the turn is used up, but at least one."""
        for item in items:
            yield item
            if self.is_over:
                return
