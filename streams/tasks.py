"""Helpers for asyncio: steps that fail together, and turns of a long computation."""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, TypeVar

TURN_SECONDS = 0.05
"""CPU time of a turn. A worker that gets a fifth of a core needs a quarter of a second for it."""

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


class Turn:
    """The CPU time that a task takes before it lets others run, such as a consumer group's heartbeats.

    The turn begins when the object is created.
    """

    def __init__(self, seconds: float = TURN_SECONDS) -> None:
        self._end = time.thread_time() + seconds

    @property
    def is_over(self) -> bool:
        return time.thread_time() >= self._end

    def of(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items until the turn is used up, but at least one."""
        for item in items:
            yield item
            if self.is_over:
                return
