"""A turn: what a task does before it lets the event loop run others, such as the heartbeats of a consumer group."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

TURN_SECONDS = 0.05
"""CPU time of a turn. A worker that gets a fifth of a core needs a quarter of a second for it."""

T = TypeVar("T")


class Turn:
    """Begins when it is made. `cpu`: seconds of CPU time of this thread."""

    def __init__(self, cpu: Callable[[], float] = time.thread_time) -> None:
        self._cpu = cpu
        self._end = cpu() + TURN_SECONDS

    @property
    def is_over(self) -> bool:
        return self._cpu() >= self._end

    def of(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items until what is done with them has taken the turn, at least one."""
        for item in items:
            yield item
            if self.is_over:
                return
