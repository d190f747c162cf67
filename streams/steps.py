"""Steps of a worker: each is timed, traced, and retried with backoff until it succeeds or no retry can help."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

import structlog
from opentelemetry.trace import SpanKind, Tracer

from afterword.streams.errors import (
    AfterwordError,
    ConfigurationError,
    ProviderError,
    ProviderMisconfigured,
    StoreUnavailable,
    snake_case,
)
from afterword.streams.telemetry.metrics import Metrics
from afterword.streams.telemetry.tracing import GenAI, MemoryChange, open_span
from faust_eos.health import Readiness

log = structlog.get_logger()

T = TypeVar("T")

Backoff = Callable[[int, Exception], float]
"""Returns the seconds until the next attempt, given the number of failed attempts and the last error."""

RETRIED = (StoreUnavailable, ProviderError, ConfigurationError)
"""Errors that pass, or that an operator repairs while the worker runs."""
FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 10.0
MISCONFIGURED_WAIT_SECONDS = 20.0
"""Longer, because an operator has to change something first."""
LOG_EVERY_SECONDS = 30.0
"""A stage logs at most once in this interval, however many records wait there."""
PUBLISH = "publish"
"""The stage that sends the summary."""


class MemoryOperation(NamedTuple):
    """The memory operation of a step, as in the GenAI conventions."""

    name: MemoryChange
    record_id: str


def backoff_seconds(failures: int, error: Exception) -> float:
    """Double the wait up to a limit, with jitter of one half to either side.

    Many records wait for the same server, and must not return all at once.
    """
    if isinstance(error, ProviderMisconfigured | ConfigurationError):
        wait = MISCONFIGURED_WAIT_SECONDS
    else:
        wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** min(failures - 1, 10))
    return wait * random.uniform(0.5, 1.5)  # noqa: S311 – spreads load, guards nothing


@dataclass(eq=False)
class StepRunner:
    """Runs steps until they succeed. While one waits, the worker is not ready, and names the stage and error type."""

    readiness: Readiness
    metrics: Metrics
    tracer: Tracer
    backoff: Backoff = backoff_seconds
    waiters: Counter[str] = field(default_factory=Counter)
    """Numbers of steps that wait, by stage."""
    logged: dict[str, float] = field(default_factory=dict)
    """When each stage last logged."""

    async def retry_until_success(
        self, stage: str, step: Callable[[], Awaitable[T]], operation: MemoryOperation | None = None
    ) -> T:
        """Return the step's result; retry while it raises one of RETRIED. `operation` describes it in its span.

        The step's duration is observed if it succeeds. Raises: any other error, at once.
        """
        kind = SpanKind.PRODUCER if stage == PUBLISH else SpanKind.INTERNAL
        attributes = {"afterword.step": stage}
        if operation is not None:
            attributes |= {GenAI.OPERATION: operation.name, GenAI.RECORD_ID: operation.record_id}
        name = operation.name if operation else stage
        with open_span(self.tracer, name, kind, attributes), ExitStack() as waiting:
            began = time.monotonic()
            for failures in count(1):
                try:
                    result = await step()
                    self.metrics.step_seconds.labels(stage).observe(time.monotonic() - began)
                    return result
                except RETRIED as error:
                    if failures == 1:
                        waiting.enter_context(self._waiting(stage))
                    self._report(stage, error, failures)
                    wait = self.backoff(failures, error)
                await asyncio.sleep(wait)
        raise AssertionError("it ends with success or with another error")

    def retried(self, store: T, stages: Mapping[str, str] = MappingProxyType({})) -> T:
        """Return the store with each call as a step, whose stage is in `stages` by the call's name, or else `find`."""
        return cast("T", _Retried(self, store, stages))

    @contextmanager
    def _waiting(self, stage: str) -> Iterator[None]:
        """Make the stage ready again once nothing waits at it."""
        self.waiters[stage] += 1
        try:
            yield
        finally:
            self.waiters[stage] -= 1
            if not self.waiters[stage]:
                self.readiness.ready(stage)

    def _report(self, stage: str, error: AfterwordError, attempt: int) -> None:
        self.readiness.not_ready(stage, error.error_type)
        now = time.monotonic()
        if now - self.logged.get(stage, -LOG_EVERY_SECONDS) >= LOG_EVERY_SECONDS:
            self.logged[stage] = now
            log.warning("step_failed", stage=stage, error_type=error.error_type, problem=str(error), attempt=attempt)


class _Retried:
    def __init__(self, steps: StepRunner, store: Any, stages: Mapping[str, str]) -> None:
        self._steps = steps
        self._store = store
        self._stages = stages

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        async def step(*args: Any, **kwargs: Any) -> Any:
            stage = self._stages.get(name, "find")
            return await self._steps.retry_until_success(stage, lambda: call(*args, **kwargs))

        return step


def error_type(error: Exception) -> str:
    return error.error_type if isinstance(error, AfterwordError) else snake_case(type(error)).removesuffix("_error")
