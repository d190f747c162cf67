"""Retries of a server's calls within a time budget. Needs no telemetry, because agents' embedders use it too."""

import random
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import stamina
import structlog

from afterword.streams.errors import AfterwordError, ProviderUnavailable

if TYPE_CHECKING:
    from afterword.streams.telemetry import Metrics

T = TypeVar("T")

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 10.0
BUDGET_SHARE = 0.05
"""Share of a retry budget that one wait takes at most, so that a small budget still allows several attempts."""


class RetryBudget:
    """Time for the retries of one summary. It runs from the first failure: waiting for a free connection costs none."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends: float | None = None

    @property
    def longest_wait(self) -> float:
        return min(LONGEST_WAIT_SECONDS, self.seconds * BUDGET_SHARE)

    def wait(self, error: Exception) -> bool | float:
        """Tell stamina whether to try again, or how many seconds to wait before. No attempt begins after the end.

        A server that asks for a longer wait than is left gets none: to ask again early would only be refused again.
        """
        if not isinstance(error, ProviderUnavailable):
            return False
        now = time.monotonic()
        self._ends = self._ends or now + self.seconds
        left = self._ends - now - self.longest_wait
        asked = error.retry_after
        if asked == 0:
            return left > 0
        jitter = random.uniform(0, self.longest_wait)  # noqa: S311 – spreads callers that were all given the same time
        return asked + jitter if asked < left else False


async def retrying(
    stage: str,
    call: Callable[[], Awaitable[T]],
    attempts: int,
    budget: RetryBudget,
    metrics: "Metrics | None" = None,
) -> T:
    """Return the call's result, after up to `attempts` calls; `stage` is for the log.

    `metrics`: counts each retry by the error before it. Raises: what the last call raised.
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
                if failed and metrics:
                    metrics.count_llm_retry(failed)
                try:
                    return await call()
                except AfterwordError as error:
                    failed = error.error_type
                    raise
    raise AssertionError("stamina raises the last error")
