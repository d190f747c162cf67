"""An eraser without servers: it begins and ends as Eraser does, and goes on when it is let."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from afterword.erasing.eraser import ErasureProgress, fresh_erasure
from afterword.erasing.receipt import Receipt, salted_digest
from afterword.erasing.remains import person_of
from afterword.schemas.base import utc_milliseconds
from tests.doubles.stores import MemoryErasures


@dataclass(frozen=True)
class ErasedCall:
    """One call of `erase`."""

    user_id: str
    tenant_id: str | None
    conversation_id: str | None


class ScriptedEraser:
    """Erases nobody. Each call raises the next of `errors`, or waits until `go` is set and makes a receipt."""

    def __init__(self) -> None:
        self.erasures = MemoryErasures()
        self.calls: list[ErasedCall] = []
        self.errors: list[Exception] = []
        self.go = asyncio.Event()
        self.go.set()
        self.dies_before_it_ends = False
        """Killed after the receipt is kept."""

    async def prepare(self) -> None:
        """Nothing to make ready."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["ScriptedEraser"]:
        yield self

    async def erase(
        self,
        user_id: str,
        tenant_id: str | None,
        conversation_id: str | None = None,
        *,
        asked_by: str | None = None,
        timeout_seconds: float = 0,
        progress: Callable[[ErasureProgress], None] = lambda _: None,
        keep: Callable[[Receipt], Awaitable[None] | None] = lambda _: None,
        receipt_id: str | None = None,
    ) -> Receipt:
        self.calls.append(ErasedCall(user_id, tenant_id, conversation_id))
        person = person_of(user_id, tenant_id, conversation_id)
        erasure = await self.erasures.begin(fresh_erasure(person, asked_by, receipt_id))
        progress(ErasureProgress("records that the archiver has not taken", 7))
        if self.errors:
            raise self.errors.pop(0)
        await self.go.wait()
        receipt = Receipt(
            receipt_id=erasure.receipt_id,
            asked_by=erasure.asked_by,
            asked_at=erasure.asked_at,
            finished_at=utc_milliseconds(datetime.now(UTC)),
            salt=erasure.salt,
            user=salted_digest(erasure.salt, "user", user_id),
            tenant=None if tenant_id is None else salted_digest(erasure.salt, "tenant", tenant_id),
            conversation=None,
            deleted_conversations=(),
            shared_conversations=(),
            counts={"messages": 3},
            topics=(),
        )
        if (kept := keep(receipt)) is not None:
            await kept
        if self.dies_before_it_ends:
            raise ConnectionAbortedError
        await self.erasures.end(erasure)
        return receipt
