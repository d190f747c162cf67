"""At-least-once attempts: one record is handled again and again before it is blamed."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from aiokafka.errors import KafkaError

from afterword.streams.runtime.batch import current_batch
from afterword.streams.runtime.breaker import Breaker
from afterword.streams.runtime.errors import EngineError, EverythingFails, place_of

log = structlog.get_logger()

HOLD_SECONDS = 10.0
"""Time for which a failed record waits for others to succeed or fail."""

Handle = Callable[[], Awaitable[None]]


class Attempts:
    """Tries records of one worker. `stops`: errors for which no record is to blame, beside the engine's and Kafka's."""

    def __init__(
        self, breaker: Breaker, retries: int, stops: tuple[type[Exception], ...], wait_seconds: float = 0.5
    ) -> None:
        """`wait_seconds`: before the first retry; doubles with each."""
        self._breaker = breaker
        self._retries = retries
        self._stops = (EngineError, KafkaError, *stops)
        self._wait = wait_seconds

    @property
    def most(self) -> int:
        """Number of tries of a record that fails."""
        return self._retries + 1

    async def once(self, handle: Handle) -> Exception | None:
        """Return the unforeseen error with which it failed, None if it is done. Raises: what is in `stops`."""
        batch = current_batch()
        sent = len(batch.outputs) if batch else 0
        try:
            await handle()
        except self._stops:
            raise
        except Exception as error:  # noqa: BLE001 – the wrapper around a record's handler
            if batch:  # what a failed try has sent
                del batch.outputs[sent:]
            return error
        self._breaker.succeeded()
        return None

    async def alone(self, key: bytes | None, where: str, handle: Handle) -> Exception | None:
        """Try until it is done or fails too often: then return the error. Counts the record as failed.

        Raises: EverythingFails; what is in `stops`.
        """
        error = await self.once(handle)
        for retry in range(self._retries):
            if error is None:
                return None
            log.error("record_failed", stage="agent", error_type=type(error).__name__, place=place_of(error))
            await asyncio.sleep(self._wait * 2**retry)
            error = await self.once(handle)
        if error is not None:
            self._breaker.failed(key)
            self.check(where, error)
        return error

    async def judged(self, where: str, error: Exception) -> None:
        """Return when others have succeeded, or nothing else was decided for a while. Raises: EverythingFails."""
        await self._breaker.decided(HOLD_SECONDS)
        self.check(where, error)

    def check(self, where: str, error: Exception) -> None:
        """Raises: EverythingFails if it does."""
        if self._breaker.is_open:
            number = self._breaker.failures
            raise EverythingFails(where=where, number=number, failure=place_of(error)) from error
