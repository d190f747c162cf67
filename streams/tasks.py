"""What asyncio lacks: steps that fail together, turns of a long computation, and queries that many tasks share."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

TURN_SECONDS = 0.05
"""CPU time of a turn. A worker that gets a fifth of a core needs a quarter of a second for it."""

T = TypeVar("T")
V = TypeVar("V")

MOST_KEYS = 1000
"""Maximum number of keys in one query, unless a single caller asks for more."""


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

    A turn begins when it is created.
    """

    def __init__(self, seconds: float = TURN_SECONDS) -> None:
        self._end = time.thread_time() + seconds
        self._not_before = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        # A thread uses no more CPU time than passes, and asking for its CPU time takes ten times as long.
        if time.monotonic() < self._not_before:
            return False
        left = self._end - time.thread_time()
        self._not_before = time.monotonic() + left
        return left <= 0

    def of(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items until working on them has used up the turn, at least one."""
        for item in items:
            yield item
            if self.is_over:
                return


class PendingRead(NamedTuple, Generic[V]):
    keys: Sequence[str]
    answer: "asyncio.Future[dict[str, V]]"


class Coalesced(Generic[V]):
    """Reads by keys, with one query at a time; callers that ask during a query share the next one.

    A query begins after its callers have asked, so each of them sees what was written before that. `read` finds what
    exists of these keys; its errors are raised to all callers of the query.
    """

    def __init__(self, read: Callable[[Sequence[str]], Awaitable[dict[str, V]]]) -> None:
        self._read = read
        self._waiting: list[PendingRead[V]] = []
        self._query: asyncio.Future[dict[str, V]] | None = None
        """The query that is under way."""

    async def __call__(self, keys: Sequence[str]) -> dict[str, V]:
        """Return what exists of these keys. Raises: whatever `read` raises."""
        mine = PendingRead(keys, asyncio.get_running_loop().create_future())
        self._waiting.append(mine)
        if self._query is None:
            self._send()
        return await mine.answer

    def _send(self) -> None:
        taken, count = [self._waiting[0]], len(self._waiting[0].keys)
        for one in self._waiting[1:]:
            count += len(one.keys)
            if count > MOST_KEYS:
                break
            taken.append(one)
        del self._waiting[: len(taken)]
        query = self._query = asyncio.ensure_future(
            self._read(list(dict.fromkeys(key for one in taken for key in one.keys)))
        )
        query.add_done_callback(lambda done: self._answer(taken, done))

    def _answer(self, taken: Sequence[PendingRead[V]], query: "asyncio.Future[dict[str, V]]") -> None:
        self._query = None
        self._waiting = [one for one in self._waiting if not one.answer.done()]  # their tasks were cancelled
        if self._waiting:
            self._send()
        # retrieved even if nobody waits for it now, because otherwise asyncio logs that nobody did
        error = None if query.cancelled() else query.exception()
        for keys, answer in taken:
            if answer.done():
                continue
            if query.cancelled():
                answer.cancel()
            elif error:
                answer.set_exception(error)
            else:
                found = query.result()
                answer.set_result({key: found[key] for key in keys if key in found})
