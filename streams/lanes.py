"""Lanes: concurrent work for many keys, in strict order within each key."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Generic, TypeVar

from afterword.streams.errors import LaneStopped

K = TypeVar("K", bound=Hashable)
Job = Callable[[], Awaitable[None]]
Lane = deque[Job]


class Lanes(Generic[K]):
    """Runs a queue and a task per key; both end when the queue is empty. The caller limits the work in flight.

    A handler that raises stops its lane: the rest of its queue is dropped, and `submit` refuses the key until `cancel`
    resets it. `on_error` is called at once and must not raise.
    """

    def __init__(self, on_error: Callable[[K, BaseException], None]) -> None:
        self._on_error = on_error
        self._lanes: dict[K, Lane] = {}
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._stopped: set[K] = set()

    @property
    def in_flight(self) -> int:
        """Number of handlers that are running or queued."""
        return sum(map(len, self._lanes.values()))

    def submit(self, key: K, handler: Job) -> None:
        """Queue a handler behind the earlier ones of its key. Raises: LaneStopped if one of them raised."""
        if key in self._stopped:
            raise LaneStopped(key=key)
        if key in self._lanes:
            self._lanes[key].append(handler)
        else:
            self._start(key, handler)

    async def drain(self, timeout: float) -> int:
        """Finish the submitted handlers within `timeout` seconds, and cancel the rest; return the number cancelled."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=timeout)
        left = self.in_flight
        await self.cancel(lambda _: True)
        return left

    async def cancel(self, predicate: Callable[[K], bool]) -> None:
        """Cancel the lanes of the keys that match, and return once none of their handlers is running."""
        keys = [key for key in self._lanes if predicate(key)]
        await _cancelled([self._tasks[key] for key in keys])
        self._stopped = {key for key in self._stopped if not predicate(key)}

    def _start(self, key: K, handler: Job) -> None:
        lane = self._lanes[key] = deque([handler])
        task = self._tasks[key] = asyncio.create_task(self._run(key, lane))
        task.add_done_callback(lambda ended: self._report(key, lane, ended))

    async def _run(self, key: K, lane: Lane) -> None:
        try:
            while lane:
                await lane[0]()
                lane.popleft()
        finally:
            self._end(key, lane)

    def _end(self, key: K, lane: Lane) -> None:
        # nothing was awaited since the lane was found empty, so nothing can have been queued
        if self._lanes.get(key) is not lane:
            return
        if lane:
            self._stopped.add(key)
        del self._lanes[key], self._tasks[key]

    def _report(self, key: K, lane: Lane, ended: asyncio.Task[None]) -> None:
        self._end(key, lane)  # a task cancelled before its first step never runs its own `finally`
        if error := _unexpected(ended):
            self._on_error(key, error)


def _unexpected(ended: asyncio.Task[None]) -> BaseException | None:
    if not ended.cancelled():
        return ended.exception()
    # we did not cancel it: the handler raised this itself, as a closed client may do
    return None if ended.cancelling() else asyncio.CancelledError()


async def _cancelled(tasks: Iterable[asyncio.Task[None]]) -> None:
    ending = list(tasks)
    for task in ending:
        task.cancel()
    if ending:
        await asyncio.wait(ending)
