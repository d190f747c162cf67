"""When a failed call is made again: what may pass by itself is, until the attempts or the time run out."""

import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import stamina
import structlog

from afterword.streams.errors import AfterwordError, ProviderUnavailable

T = TypeVar("T")

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 10.0
BUDGET_SHARE = 0.05
"""Of the budget, the longest that one wait takes, so that a small budget still allows several attempts."""


class Budget:
    """The time that one summary may spend on retries. It runs from the first failure on: waiting for a turn is free."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends: float | None = None

    @property
    def longest_wait(self) -> float:
        return min(LONGEST_WAIT_SECONDS, self.seconds * BUDGET_SHARE)

    def wait(self, error: Exception) -> bool | float:
        """For stamina: whether to try again, or the seconds to wait before. No attempt begins after the budget's end.

        A server that asks for a longer wait than is left gets none: to ask again early would only be refused again.
        """
        if not isinstance(error, ProviderUnavailable):
            return False
        now = time.monotonic()
        self._ends = self._ends or now + self.seconds
        left = self._ends - now - self.longest_wait
        asked = float(vars(error).get("retry_after") or 0.0)
        if asked == 0:
            return left > 0
        jitter = random.uniform(0, self.longest_wait)  # noqa: S311 – spreads callers that were all told the same moment
        return asked + jitter if asked < left else False


async def retrying(
    stage: str,
    call: Callable[[], Awaitable[T]],
    attempts: int,
    budget: Budget,
    retried: Callable[[str], None] = lambda _: None,
) -> T:
    """The call's result, after up to `attempts` calls. `stage` is for the log; `retried` is told each error's type.

    Raises: what the last call raised.
    """
    longest = budget.longest_wait
    first = min(FIRST_WAIT_SECONDS, longest / 4)
    context = stamina.retry_context(
        on=budget.wait, attempts=attempts, timeout=None, wait_initial=first, wait_max=longest, wait_jitter=first
    )
    with structlog.contextvars.bound_contextvars(stage=stage):
        failed = ""
        async for attempt in context:
            with attempt:
                if failed:
                    retried(failed)
                try:
                    return await call()
                except AfterwordError as error:
                    failed = error.error_type
                    raise
    raise AssertionError("stamina raises the last error")
