"""Writes that share one trip to the disk or the server."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from afterword.streams.errors import StoreRefuses, StoreUnavailable

T = TypeVar("T")


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
