"""Erasures that a server carries out. Each is retried until it is done, and starts over after a restart."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from afterword.operating.erasing.eraser import Eraser, NotErased, UserNotArchived, new_erasure
from afterword.operating.erasing.person import Person
from afterword.streams.errors import AfterwordError, StoreUnavailable, snake_case
from afterword.streams.stores.bookkeeping import Erasure, Erasures

AT_A_TIME = 4
"""Number of erasures that one server carries out at once."""
ATTEMPT_SECONDS = 300.0
"""After this time another erasure gets its turn."""
RETRY_SECONDS = 30.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ErasureRunner:
    """Accepts requests and carries them out while it runs, including those that were in progress when it started.

    `prepare` makes the database ready. `open_eraser` builds an eraser, and entering that connects to Kafka.
    """

    erasures: Erasures
    prepare: Callable[[], Awaitable[None]]
    open_eraser: Callable[[], AbstractAsyncContextManager[Eraser]]
    _asked: asyncio.Queue[Erasure] = field(default_factory=asyncio.Queue)
    _turns: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, AT_A_TIME))

    async def ask(self, person: Person, asked_by: str | None) -> Erasure:
        """Store and return a request, or return the person's request in progress. Raises: StoreUnavailable."""
        await self.prepare()
        erasure = await self.erasures.begin(new_erasure(person, asked_by))
        self._asked.put_nowait(erasure)
        return erasure

    async def find(self, erasure_id: str) -> Erasure | None:
        """Return an erasure by its id. Raises: StoreUnavailable."""
        return await self.erasures.find(erasure_id)

    async def run(self) -> None:
        """Carry out requests until cancelled."""
        tasks: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            group.create_task(self._resume())
            while True:
                erasure = await self._asked.get()
                tasks = {erasure_id: task for erasure_id, task in tasks.items() if not task.done()}
                if erasure.erasure_id not in tasks:
                    tasks[erasure.erasure_id] = group.create_task(self._carry_out(erasure))

    async def _resume(self) -> None:
        """Resume what was in progress when a server stopped."""
        while True:
            try:
                for erasure in await self.erasures.under_way():
                    self._asked.put_nowait(erasure)
            except StoreUnavailable as error:
                log.warning("erasures_not_read", stage="serve", error_type=error.error_type)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _carry_out(self, erasure: Erasure) -> None:
        about = {"stage": "serve", "erasure_id": erasure.erasure_id}
        while True:
            async with self._turns:
                log.info("erasure_started", **about)
                [error] = await asyncio.gather(self._attempt(erasure), return_exceptions=True)
            if error is None:
                log.info("erasure_ended", **about)
                return
            problem = error.error_type if isinstance(error, AfterwordError) else snake_case(type(error))
            # the texts of other errors may name servers
            detail = str(error) if isinstance(error, NotErased | UserNotArchived) else ""
            log.warning("erasure_postponed", error_type=problem, **about)
            try:
                await self.erasures.report(replace(erasure, problem=problem, detail=detail))
            except StoreUnavailable as unavailable:
                log.warning("erasure_not_reported", stage="serve", error_type=unavailable.error_type)
            await asyncio.sleep(RETRY_SECONDS)

    async def _attempt(self, erasure: Erasure) -> None:
        known = await self.erasures.find(erasure.erasure_id)
        if known is None or known.receipt is not None:  # another server finished it first
            return
        assert erasure.user_id is not None  # noqa: S101 – it is in progress
        person = Person(erasure.user_id, erasure.tenant_id, erasure.conversation_id)

        async def report(stage: str, left: int) -> None:
            await self.erasures.report(replace(erasure, is_running=True, stage=stage, left=left))

        await self.erasures.report(replace(erasure, is_running=True, stage=None))
        async with self.open_eraser() as eraser:
            await eraser.erase(*person, asked_by=erasure.asked_by, timeout_seconds=ATTEMPT_SECONDS, progress=report)
