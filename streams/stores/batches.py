"""Writes that share one trip to the disk or the server."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from afterword.streams.errors import StoreRefuses, StoreUnavailable

T = TypeVar("T")


class Job(NamedTuple):
    """A job that waits for its batch."""

    work: Any
    kind: Hashable
    result: asyncio.Future[Any]


class Batches(Generic[T]):
    """Runs one batch at a time. Jobs that arrive meanwhile wait, and those of one kind form the next batch.

    A job that arrives while nothing runs waits for nothing. If a batch of several fails because of one of its jobs,
    each is run by itself.
    """

    def __init__(self, run: Callable[[Any, list[T]], Awaitable[Sequence[Any]]], most: int) -> None:
        """`run` runs jobs of one kind and returns their results; a batch has at most `most`."""
        self._run = run
        self._most = most
        self._waiting: deque[Job] = deque()
        self._work: asyncio.Task[None] | None = None

    async def result(self, work: T, kind: Hashable) -> Any:
        """Run a job and return its result. Jobs of kind None are run by themselves."""
        job = Job(work, kind, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._run_waiting())  # jobs that are given together are in one batch
        return await job.result

    async def _run_waiting(self) -> None:
        while self._waiting:
            jobs = [self._waiting.popleft()]
            kind, most = jobs[0].kind, self._most if jobs[0].kind is not None else 1
            while self._waiting and len(jobs) < most and self._waiting[0].kind == kind:
                jobs.append(self._waiting.popleft())
            if not await self._answered(jobs):
                for job in jobs:
                    await self._answered([job])

    async def _answered(self, jobs: Sequence[Job]) -> bool:
        """Run jobs together and answer them; return False if one of several made them fail."""
        work = asyncio.ensure_future(self._run(jobs[0].kind, [job.work for job in jobs]))
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
