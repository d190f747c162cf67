"""Waiting for what is away: nothing is lost by it, and the worker says that it waits."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Protocol, TypeVar

import structlog
from aiokafka.errors import KafkaError

from afterword.streams.errors import (
    AfterwordError,
    ConfigurationError,
    ProviderError,
    ProviderMisconfigured,
    StoreUnavailable,
)
from afterword.streams.summarizer.observer import Observer

log = structlog.get_logger()

T = TypeVar("T")

WAITED_FOR = (StoreUnavailable, ProviderError, ConfigurationError, KafkaError)
"""What passes, or is repaired outside while the worker runs."""
FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 10.0
MISCONFIGURED_WAIT_SECONDS = 20.0
"""Somebody has to change something first."""
LOG_EVERY_SECONDS = 30.0
"""For each stage, however many episodes wait at it."""


class Health(Protocol):
    """Who is told that work waits, so that readiness follows."""

    def waiting(self, stage: str, error_type: str) -> None:
        """Said again with every failed attempt."""
        ...

    def recovered(self, stage: str) -> None:
        """Nobody waits at this stage any more."""
        ...


class Patience:
    """Repeats a step until it is done. Only cancellation, or an error of another kind, ends it before."""

    def __init__(
        self,
        health: Health,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        observer: Observer = Observer(),  # noqa: B008 – does nothing, keeps nothing
    ) -> None:
        self._health = health
        self._pause = pause
        self._observer = observer
        self._waiters: Counter[str] = Counter()
        self._logged: dict[str, float] = {}

    async def until_done(self, stage: str, step: Callable[[], Awaitable[T]]) -> T:
        with self._observer.step(stage):
            try:
                return await step()
            except WAITED_FOR as error:
                self._waiters[stage] += 1
                try:
                    return await self._again(stage, step, error)
                finally:
                    self._leave(stage)

    async def _again(self, stage: str, step: Callable[[], Awaitable[T]], error: Exception) -> T:
        for attempt in count():
            self._report(stage, error, attempt)
            await self._pause(wait_seconds(attempt, error))
            try:
                return await step()
            except WAITED_FOR as again:
                error = again
        raise AssertionError("count() does not end")

    def _leave(self, stage: str) -> None:
        self._waiters[stage] -= 1
        if not self._waiters[stage]:
            self._health.recovered(stage)

    def _report(self, stage: str, error: Exception, attempt: int) -> None:
        kind = error_type(error)
        self._health.waiting(stage, kind)
        now = time.monotonic()
        if now - self._logged.get(stage, -LOG_EVERY_SECONDS) >= LOG_EVERY_SECONDS:
            self._logged[stage] = now
            problem = str(error) if isinstance(error, AfterwordError) else None
            log.warning("waits", stage=stage, error_type=kind, problem=problem, attempt=attempt + 1)


def error_type(error: Exception) -> str:
    """A stable snake_case name."""
    if isinstance(error, AfterwordError):
        return error.error_type
    name = type(error).__name__.removesuffix("Error")
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


def wait_seconds(attempt: int, error: Exception) -> float:
    """Doubling, bounded, and spread by half to either side so that waiting episodes do not come back all at once."""
    if isinstance(error, ProviderMisconfigured | ConfigurationError):
        wait = MISCONFIGURED_WAIT_SECONDS
    else:
        wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** min(attempt, 10))
    return wait * random.uniform(0.5, 1.5)  # noqa: S311 – spreads load, guards nothing
