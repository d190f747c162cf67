"""Retries calls to a server, within a time for retries and the deadline of a summary, and judges its refusals.

It needs no telemetry, because agents' embedders use it too.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from math import inf
from typing import TYPE_CHECKING, TypeVar

import stamina
import structlog

from afterword.streams.errors import (
    AfterwordError,
    AnswerInvalid,
    ProviderError,
    ProviderMisconfigured,
    ProviderUnavailable,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from afterword.streams.stores.bookkeeping import Records
    from afterword.streams.telemetry.metrics import Metrics

T = TypeVar("T")

log = structlog.get_logger()

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 10.0
BUDGET_SHARE = 0.05
"""Largest fraction of the time for retries that one wait takes, so that a short time still allows several attempts."""
AT_ONCE = 0.0
FIRST_INTERVAL_SECONDS, LONGEST_INTERVAL_SECONDS, MOST_INTERVALS = 5.0, 300.0, 10
"""Intervals between two questions to a server that refuses everything; they double."""
MOST_UNUSABLE = 5
"""After this many questions in a row whose answers have the same fault, the model is not asked for a time."""
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

    A call that was held back does not count. It asks for up to `answers` answers until one is usable. No retry begins
    later than `seconds` after the first failure, or after the whole summary's `deadline`. If a server asks for a longer
    wait than is left, there is no retry: an earlier one would only be refused again. `stage` is for the log. `metrics`
    counts each retry by the error before it. Raises: whatever the last call raised.
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
        calls += not (isinstance(error, ProviderUnavailable) and error.was_held)
        if calls == attempts or not isinstance(error, ProviderUnavailable) or error.stops_asking:
            return False
        ends = ends or _now() + seconds
        left = min(ends - _now(), deadline.left) - longest
        asked = error.retry_after
        jitter = random.uniform(0, longest)  # noqa: S311 – spreads callers that were all given the same time
        return asked < left and (asked + jitter if asked else True)

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


class ServerState:
    """What is known of one server and model: whether it answers, and until when it must not be asked.

    A status such as 403 does not say what caused it: a moderation filter or a firewall uses it for the text of one
    request, a gateway for a wrong key. The two differ in whether the server answers any other request.

    Nothing is asked while the server asks to wait. If it refuses everything, or its answers are unusable again and
    again, only one question is asked in each of a series of growing intervals, by all workers that share `records`.
    """

    def __init__(
        self, clock: Callable[[], float] | None = None, records: "Records | None" = None, key: str = ""
    ) -> None:
        """`clock` returns seconds; None means the event loop's. `key` is that of the shared record."""
        self.now = clock or _now
        self._records, self._key = records, key
        self._shared: str | None = None
        """The shared record as it was last seen."""
        self._answered_at = self._failed_at = -inf
        self._probing = asyncio.Lock()
        self._until = -inf
        self._error: ProviderUnavailable | None = None
        """Why nothing is asked before `_until`."""
        self._intervals = 0
        """Number of intervals since the server refuses everything."""
        self._fault, self._unusable = "", 0
        """What was wrong with the last answers, and how many had this fault in a row."""

    @asynccontextmanager
    async def turn(self, *, takes_interval: bool = True) -> AsyncIterator[None]:
        """Let a question pass. `takes_interval` makes others wait for this one.

        Raises: ProviderUnavailable while nothing may be asked.
        """
        await self.share()
        self.require_open(takes_interval=takes_interval)
        if self._told != self._shared and not await self.share():  # another worker was quicker
            self.require_open(takes_interval=takes_interval)
        try:
            yield
        except ProviderUnavailable as error:
            self.failed(error)
            raise
        finally:
            if self._told != self._shared:
                await self.share()

    def require_open(self, *, takes_interval: bool = True) -> None:
        """Raise ProviderUnavailable while nothing may be asked, and begin the next interval if one is over."""
        left = self._until - self.now()
        if self._error and left > 0:
            wait = 0.0 if self._error.stops_asking else left
            raise type(self._error)(**{**self._error.__dict__, "retry_after": wait, "was_held": True})
        if self._intervals and (takes_interval or self._unusable < MOST_UNUSABLE):
            self._begin_interval()

    def failed(self, error: ProviderUnavailable) -> None:
        """Note an error after which nothing may be asked for a time; any other one changes nothing."""
        is_refused = error.stops_asking and self._until <= self.now()
        if is_refused or error.retry_after:
            # a copy, because the traceback of the error holds on to the response and the request
            self._error = type(error)(**error.__dict__)
        if is_refused:
            self._begin_interval()
        elif error.retry_after:
            self._until = max(self._until, self.now() + error.retry_after)

    def answered(self) -> None:
        """Note that the server has just answered a request."""
        self._answered_at = self.now()
        if self._intervals and self._unusable < MOST_UNUSABLE:
            self._error, self._intervals = None, 0

    def used(self, problem: str | None) -> None:
        """Note whether a question got a usable answer, or in the end what was wrong with the last one."""
        if problem is None:
            self._unusable = 0
            self.answered()
            return
        self._fault, self._unusable = problem, self._unusable + 1 if problem == self._fault else 1
        if self._unusable >= MOST_UNUSABLE:
            times = f"{problem}, {self._unusable} times in a row"
            self.failed(ProviderMisconfigured(problem=times, stops_asking=True))

    def _begin_interval(self) -> None:
        if not self._intervals and self._error:
            log.warning("llm_not_asked", problem=self._error.problem, error_type=self._error.error_type)
        self._until = self.now() + min(FIRST_INTERVAL_SECONDS * 2.0**self._intervals, LONGEST_INTERVAL_SECONDS)
        self._intervals = min(self._intervals + 1, MOST_INTERVALS)

    @property
    def _told(self) -> str | None:
        """What other workers have to know; None if the server may be asked."""
        if not (self._error and self._intervals):
            return None
        return json.dumps([self._error.problem, self._until, self._intervals, self._fault, self._unusable])

    async def share(self) -> bool:
        """Tell other workers what has changed, or else adopt what one of them has told; return whether none has."""
        told = self._told
        with suppress(StoreUnavailable):  # until the store is back, each worker is on its own
            if not self._records:
                return True
            if told != self._shared and await self._records.replace("llm_servers", self._key, self._shared, told):
                self._shared = told
                return True
            known = self._shared, told
            self._shared = await self._records.read("llm_servers", self._key)
            if self._shared in known:
                return True
            self._error, self._intervals, self._unusable = None, 0, 0
            if self._shared:
                problem, until, self._intervals, self._fault, self._unusable = json.loads(self._shared)
                self._until = min(until, self.now() + LONGEST_INTERVAL_SECONDS)  # the other's clock may be ahead
                self._error = ProviderMisconfigured(problem=problem, stops_asking=True)
            return False
        return True

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
                self._failed_at = self.now()
                return False
            self.answered()
            return True


def _now() -> float:
    return asyncio.get_running_loop().time()
