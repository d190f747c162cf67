"""An event loop without clocks and sockets. Ready callbacks run in order, and only the test lets time pass."""

import asyncio
import contextvars
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

MOST_CALLBACKS = 20_000
"""Maximum number of callbacks before the next outside call; more mean an endless loop."""


class Loop(asyncio.AbstractEventLoop):
    """Implements what asyncio's tasks, futures, timeouts and `wait` need."""

    def __init__(self) -> None:
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._now = 0.0
        self.tasks: dict[asyncio.Task[Any], contextvars.Context] = {}
        """Tasks that have not ended, with their contexts."""

    # -- methods for the code that drives the loop

    @contextmanager
    def running(self) -> Iterator[None]:
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(before)

    def run_ready(self) -> None:
        """Run callbacks until every task waits."""
        with self.running():
            for _ in range(MOST_CALLBACKS):
                if not self._ready:
                    return
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        raise AssertionError("goes round in circles without a call to the outside")

    def next_timer(self) -> float | None:
        """Return the time of the next timer, or None without one."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def pass_until(self, moment: float) -> None:
        """Fire the timers up to this moment."""
        self._now = max(self._now, moment)
        while (due := self.next_timer()) is not None and due <= self._now:
            self._ready.append(heapq.heappop(self._timers)[2])

    # -- methods that asyncio calls

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is dropped when it would fire."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run it at once, instead of in a thread."""
        future = self.create_future()
        future.set_result(func(*args))
        return future

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        context = context or contextvars.copy_context()
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self.tasks[task] = context
        task.add_done_callback(self.tasks.pop)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore unretrieved errors and destroyed pending tasks, which a dead process leaves behind."""
        error = context.get("exception")
        if isinstance(error, AssertionError):
            raise error
