"""Retries calls to a server, within a time for retries and the deadline of a summary, and judges its refusals.

It needs no telemetry, because agents' embedders use it too.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import inf
from typing import TYPE_CHECKING, TypeVar

import stamina
import structlog

from afterword.streams.errors import AfterwordError, AnswerInvalid, ProviderError, ProviderUnavailable

if TYPE_CHECKING:
    from afterword.streams.telemetry import Metrics

T = TypeVar("T")

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 10.0
BUDGET_SHARE = 0.05
"""Largest fraction of the time for retries that one wait takes, so that a short time still allows several attempts."""
AT_ONCE = 0.0
TIME_IS_UP = "it took longer than a summary may take"


class Deadline:
    """The time for all questions of one summary. It is stopped while they only wait for calls of other summaries."""

    def __init__(self, seconds: float = inf) -> None:
        self._left = seconds
        self._running = 0
        self._since = 0.0

    @property
    def left(self) -> float:
        """Seconds left; 0 or less if the time is up."""
        return self._left - (_now() - self._since) if self._running else self._left

    @contextmanager
    def running(self, questions: int = 1) -> Iterator[None]:
        """Count these questions as open during the block. The time runs while any question is open."""
        self._change(questions)
        try:
            yield
        finally:
            self._change(-questions)

    @asynccontextmanager
    async def hold(self, lock: asyncio.Lock | asyncio.Semaphore) -> AsyncIterator[None]:
        """Hold a lock that others may have; the time does not run while waiting for it.

        Raises: ProviderUnavailable if the time is up.
        """
        with self.running(-1):
            await lock.acquire()
        try:
            if self.left <= 0:
                raise ProviderUnavailable(problem=TIME_IS_UP)
            yield
        finally:
            lock.release()

    def _change(self, questions: int) -> None:
        self._left, self._since = self.left, _now()
        self._running += questions


async def retrying(
    stage: str,
    call: Callable[[], Awaitable[T]],
    attempts: int,
    seconds: float,
    deadline: Deadline | None = None,
    metrics: "Metrics | None" = None,
    answers: int = 1,
) -> T:
    """Return the call's result, calling up to `attempts` times per answer.

    It asks for up to `answers` answers until one is usable. No retry begins later than `seconds` after the first
    failure, or after the whole summary's `deadline`. If a server asks for a longer wait than is left, there is no
    retry: an earlier one would only be refused again. `stage` is for the log. `metrics` counts each retry by the error
    before it. Raises: whatever the last call raised.
    """
    deadline = deadline or Deadline()
    longest = min(LONGEST_WAIT_SECONDS, seconds * BUDGET_SHARE)
    calls = unusable = 0
    ends: float | None = None
    failed = ""

    def wait(error: Exception) -> bool | float:
        """Tell stamina whether to try again, or how many seconds to wait first."""
        nonlocal calls, unusable, ends
        if isinstance(error, AnswerInvalid):
            calls, unusable = 0, unusable + 1
            return AT_ONCE if unusable < answers and deadline.left > 0 else False
        calls += 1
        if calls == attempts or not isinstance(error, ProviderUnavailable):
            return False
        ends = _now() + seconds if ends is None else ends
        left = min(ends - _now(), deadline.left) - longest
        asked = error.retry_after
        if asked == 0:
            return left > 0
        jitter = random.uniform(0, longest)  # noqa: S311 – spreads callers that were all given the same time
        return asked + jitter if asked < left else False

    first = min(FIRST_WAIT_SECONDS, longest / 4)
    context = stamina.retry_context(
        on=wait, attempts=None, timeout=None, wait_initial=first, wait_max=longest, wait_jitter=first
    )
    with structlog.contextvars.bound_contextvars(stage=stage), deadline.running():
        async for attempt in context:
            with attempt:
                if failed and metrics:
                    metrics.llm_retries.labels(failed).inc()
                try:
                    return await call()
                except AfterwordError as error:
                    failed = error.error_type
                    raise
    raise AssertionError("stamina raises the last error")


class PromptRefusals:
    """Judges the refusals of one server and model.

    A status such as 403 does not say what caused it: a moderation filter or a firewall uses it for the text of one
    request, a gateway for a wrong key. The two differ in whether the server answers any other request.
    """

    def __init__(self) -> None:
        self._answered_at = self._failed_at = -inf
        self._probing = asyncio.Lock()

    def answered(self) -> None:
        """Note that the server has just answered a request."""
        self._answered_at = _now()

    async def concern_one_request(
        self, asked_at: float, ask_something_harmless: Callable[[], Awaitable[object]]
    ) -> bool:
        """Return whether the server has answered another request since `asked_at` (loop time), or answers one now.

        `ask_something_harmless` raises AnswerInvalid for an odd answer, and any other ProviderError for no answer.
        """
        async with self._probing:  # if many requests are refused, only the first asks the question
            if self._answered_at > asked_at:
                return True
            if self._failed_at > asked_at:
                return False
            try:
                await ask_something_harmless()
            except AnswerInvalid:
                pass  # it did answer
            except ProviderError:
                self._failed_at = _now()
                return False
            self.answered()
            return True


def _now() -> float:
    return asyncio.get_running_loop().time()
