"""Requests for erasures that servers carry out: stored before they are accepted, held by one server at a time.

A server that is killed holds its requests no longer after HOLD_SECONDS; any server then goes on with them.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import structlog

from afterword.erasing.eraser import ErasureProgress, NotErased, UserNotArchived, fresh_erasure
from afterword.erasing.receipt import Receipt
from afterword.erasing.remains import Person
from afterword.schemas.base import utc_milliseconds
from afterword.streams.errors import AfterwordError, StoreUnavailable, snake_case
from afterword.streams.stores.erasures import ErasureRequest, ErasureRequests, Erasures

AT_A_TIME = 4
"""Requests that one server carries out together."""
LOOK_SECONDS = 5.0
"""Time between two looks for requests of servers that are gone."""
HOLD_SECONDS = 15.0
RENEW_SECONDS = 2.0
ATTEMPT_SECONDS = 300.0
"""Time after which another request gets its turn."""
RETRY_SECONDS = 30.0

log = structlog.get_logger(__name__)


class Erasing(Protocol):
    """Erases persons: an Eraser."""

    async def erase(
        self,
        user_id: str,
        tenant_id: str | None,
        conversation_id: str | None = None,
        *,
        asked_by: str | None = None,
        timeout_seconds: float = ATTEMPT_SECONDS,
        progress: Callable[[ErasureProgress], None] = lambda _: None,
        keep: Callable[[Receipt], Awaitable[None] | None] = lambda _: None,
        receipt_id: str | None = None,
    ) -> Receipt: ...


class ErasureRunner:
    """Accepts requests, and carries them out while it runs.

    `prepare`: makes the database ready. `open_eraser`: builds an eraser; entering it connects to Kafka.
    """

    def __init__(
        self,
        requests: ErasureRequests,
        erasures: Erasures,
        prepare: Callable[[], Awaitable[None]],
        open_eraser: Callable[[], AbstractAsyncContextManager[Erasing]],
    ) -> None:
        self._requests = requests
        self._erasures = erasures
        self._prepare = prepare
        self._open_eraser = open_eraser
        self._asked = asyncio.Event()

    async def ask(self, person: Person, asked_by: str | None) -> ErasureRequest:
        """Store a request, and return it; or the one of the same person that is under way. Raises: StoreUnavailable."""
        await self._prepare()
        while True:
            erasure = await self._erasures.begin(fresh_erasure(person, asked_by))
            fresh = ErasureRequest(
                request_id=erasure.receipt_id,
                user_id=person.user_id,
                tenant_id=person.tenant_id,
                conversation_id=person.conversation_id,
                asked_at=erasure.asked_at,
                asked_by=erasure.asked_by,
                held_until=stored_time(),
            )
            request = await self._requests.add(fresh)
            if request.receipt is None:
                self._asked.set()
                return request
            await self._end(request.request_id, person)  # its server was killed before it did so

    async def find(self, request_id: str) -> ErasureRequest | None:
        """Raises: StoreUnavailable."""
        return await self._requests.find(request_id)

    async def run(self) -> None:
        """Carry requests out, for ever."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_A_TIME):
                group.create_task(self._take_turns())

    async def _take_turns(self) -> None:
        while True:
            self._asked.clear()
            try:
                request = await self._requests.take(secrets.token_hex(8), stored_time(), stored_time(HOLD_SECONDS))
                if request is not None:
                    await self._carry_out(request)
                    continue
            except StoreUnavailable as error:
                log.warning("erasures_interrupted", stage="serve", error_type=error.error_type)
            await self._wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._asked.wait()
        except TimeoutError:
            return

    async def _carry_out(self, request: ErasureRequest) -> None:
        """Carry one out until it has ended, or can go no further now."""
        log.info("erasure_taken", stage="serve", erasure_id=request.request_id)
        seen: list[ErasureProgress] = []
        erasing = asyncio.create_task(self._erase(request, seen))
        holding = asyncio.create_task(self._hold(request, seen))
        try:
            await asyncio.wait({erasing, holding}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            erasing.cancel()
            holding.cancel()
            await asyncio.gather(erasing, holding, return_exceptions=True)
            await self._let_go(request, erasing)

    async def _let_go(self, request: ErasureRequest, erasing: asyncio.Task[None]) -> None:
        """Put off what has not ended: at once when it was this server that stopped, else for a while."""
        error = None if erasing.cancelled() else erasing.exception()
        if error is None and not erasing.cancelled():
            return
        stopped = replace(request, **attempt_problem(error))
        log.warning("erasure_put_off", stage="serve", erasure_id=request.request_id, error_type=stopped.problem)
        try:
            await self._requests.put_off(stopped, stored_time(RETRY_SECONDS if error else 0))
        except StoreUnavailable:
            log.warning("erasure_still_held", stage="serve", erasure_id=request.request_id, seconds=HOLD_SECONDS)

    async def _erase(self, request: ErasureRequest, seen: list[ErasureProgress]) -> None:
        assert request.user_id is not None  # noqa: S101 – only those that have not ended are taken
        person = Person(request.user_id, request.tenant_id, request.conversation_id)

        async def keep(receipt: Receipt) -> None:
            await self._requests.keep(request.request_id, receipt.model_dump_json())

        if request.receipt is None:
            async with self._open_eraser() as eraser:
                await eraser.erase(
                    *person,
                    asked_by=request.asked_by,
                    timeout_seconds=ATTEMPT_SECONDS,
                    progress=lambda progress: seen.__setitem__(slice(None), [progress]),
                    keep=keep,
                    receipt_id=request.request_id,
                )
        await self._end(request.request_id, person)
        log.info("erasure_ended", stage="serve", erasure_id=request.request_id)

    async def _hold(self, request: ErasureRequest, seen: list[ErasureProgress]) -> None:
        """Hold the request until another server has it. Raises: StoreUnavailable."""
        while True:
            if not await self._requests.renew(with_progress(request, seen), stored_time(HOLD_SECONDS)):
                return
            await asyncio.sleep(RENEW_SECONDS)

    async def _end(self, request_id: str, person: Person) -> None:
        """Forget whose it was, after its receipt is kept."""
        under_way = await self._erasures.find(fresh_erasure(person, None))
        if under_way is not None and under_way.receipt_id == request_id:
            await self._erasures.end(under_way)
        await self._requests.end(request_id)


def stored_time(later_seconds: float = 0.0) -> datetime:
    """The moment, or a later one, as stores keep it."""
    return utc_milliseconds(datetime.now(UTC) + timedelta(seconds=later_seconds))


def with_progress(request: ErasureRequest, seen: list[ErasureProgress]) -> ErasureRequest:
    return replace(request, stage=seen[0].stage, left=seen[0].left) if seen else request


def attempt_problem(error: BaseException | None) -> dict[str, Any]:
    """`problem` and `detail` of an attempt that failed; the detail of what names servers is for their log."""
    if error is None:
        return {"problem": None, "detail": ""}
    problem = error.error_type if isinstance(error, AfterwordError) else snake_case(type(error))
    return {"problem": problem, "detail": str(error) if isinstance(error, NotErased | UserNotArchived) else ""}
