"""An eraser without servers, which waits until a test lets it continue."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from afterword.operating.eraser import Report, new_erasure
from afterword.operating.person import Person, Receipt, person_of
from afterword.schemas.base import utc_milliseconds
from tests.doubles.stores import MemoryErasures


class ScriptedEraser:
    """Erases nobody. Each call raises the next of `errors`, or waits until `go` is set and makes a receipt."""

    def __init__(self) -> None:
        self.erasures = MemoryErasures()
        self.calls: list[Person] = []
        self.errors: list[Exception] = []
        self.go = asyncio.Event()
        self.go.set()

    async def prepare(self) -> None:
        """Do nothing: there is no database."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["ScriptedEraser"]:
        yield self

    async def erase(
        self,
        user_id: str,
        tenant_id: str | None,
        *,
        asked_by: str | None = None,
        timeout_seconds: float = 0,
        progress: Report,
    ) -> Receipt:
        person = person_of(user_id, tenant_id)
        self.calls.append(person)
        erasure = await self.erasures.begin(new_erasure(person, asked_by))
        await progress("records that the archiver has not processed", 7)
        if self.errors:
            raise self.errors.pop(0)
        await self.go.wait()
        receipt = Receipt(
            receipt_id=erasure.erasure_id,
            asked_by=erasure.asked_by,
            asked_at=erasure.asked_at,
            finished_at=utc_milliseconds(datetime.now(UTC)),
            person=person.digest(erasure.erasure_id),
            deleted_conversations=(),
            shared_conversations=(),
            counts={"messages": 3},
            topics=(),
        )
        await self.erasures.end(erasure, receipt.model_dump_json())
        return receipt
