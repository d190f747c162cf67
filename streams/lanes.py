"""Lanes: concurrent work for many keys, in strict order within each key."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
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
            return
        lane = self._lanes[key] = deque([handler])
        task = self._tasks[key] = asyncio.create_task(self._run(key, lane))
        task.add_done_callback(partial(self._report, key, lane))

    async def cancel(self) -> None:
        """Cancel all lanes, and return once no handler is running."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._stopped.clear()

    async def _run(self, key: K, lane: Lane) -> None:
        try:
            while lane:
                await lane[0]()
                lane.popleft()
        finally:
            self._end(key, lane)

    def _end(self, key: K, lane: Lane) -> None:
        # nothing was awaited since the lane was found empty, so nothing can have been queued
        if self._lanes.get(key) is lane:
            if lane:
                self._stopped.add(key)
            del self._lanes[key], self._tasks[key]

    def _report(self, key: K, lane: Lane, ended: asyncio.Task[None]) -> None:
        self._end(key, lane)  # a task cancelled before its first step never runs its own `finally`
        if ended.cancelled():
            if not ended.cancelling():  # the handler raised this itself, as a closed client may do
                self._on_error(key, asyncio.CancelledError())
        elif error := ended.exception():
            self._on_error(key, error)
