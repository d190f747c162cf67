"""What holds a fallback's next try back: its time, and an LLM that does not answer."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import structlog

from afterword.schemas import InvalidRecord
from afterword.streams.errors import ProviderError, ProviderUnavailable
from afterword.streams.settings import Retry
from afterword.streams.summarizer.providers.base import Provider
from afterword.streams.summarizer.retries import try_from

STAGE = "retry"
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0

log = structlog.get_logger()


class Gate:
    """Opens for a record of `episode.retry` when its time has come and the LLM answers. It never refuses one."""

    def __init__(
        self,
        llm: Provider,
        retry: Retry,
        clock: Callable[[], datetime],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._llm = llm
        self._retry = retry
        self._clock = clock
        self._pause = pause
        self._asking = asyncio.Lock()  # one partition asks for all of the worker's

    async def hold(self, record: Any) -> None:
        await self._pause(self._seconds_until_due(record))
        async with self._asking:
            await self._until_it_answers()

    def _seconds_until_due(self, record: Any) -> float:
        try:
            due = try_from(record.headers).not_before
        except InvalidRecord:
            return 0.0  # whoever handles it says so
        if due is None:
            return 0.0
        # bounded: a clock that was wrong when it was written must not stop the partition
        return min(max(0.0, (due - self._clock()).total_seconds()), self._retry.longest_delay_seconds)

    async def _until_it_answers(self) -> None:
        wait = FIRST_WAIT_SECONDS
        while (error := await self._trouble()) is not None:
            if wait == FIRST_WAIT_SECONDS:
                log.info("retries wait for the llm", stage=STAGE, error_type=error.error_type)
            await self._pause(wait * random.uniform(0.5, 1.5))  # noqa: S311 – spreads load, guards nothing
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    async def _trouble(self) -> ProviderUnavailable | None:
        try:
            await self._llm.check()
        except ProviderUnavailable as error:
            return error
        except ProviderError:  # what cannot be checked can still be tried
            return None
        return None
