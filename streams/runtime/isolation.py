"""Isolation of failures in a partition: which slices commit, and on which records and keys the agent fails alone."""

import time
from typing import Any

import structlog

from afterword.streams.runtime.batch import Batches, Output
from afterword.streams.runtime.breaker import Breaker
from afterword.streams.runtime.errors import AgentFailed, EngineError, EverythingFails, place_of
from afterword.streams.runtime.options import Options
from afterword.streams.runtime.slices import Slices

log = structlog.get_logger()

SKIP_SECONDS = 600.0
"""Time for which a key is not due on which the agent fails."""
SKIPPED = 10_000
"""Most keys that are passed over at a time."""

TableKey = tuple[str, bytes]
"""Table and key."""


class Isolation:
    """Failures of one partition: slice sizes, rejected records, rows passed over. Outlives its sessions."""

    def __init__(self, where: str, options: Options, breaker: Breaker, schema: Batches | None) -> None:
        self.slices = Slices(options.max_batch, options.max_batch_bytes, options.max_written_bytes)
        self.ticks = Slices(options.tick_keys, options.max_batch_bytes, options.max_written_bytes)
        self._where = where
        self._breaker = breaker
        self._reject = schema.reject if schema else None
        self._stops: tuple[type[Exception], ...] = (EngineError, *(schema.stops if schema else ()))
        self._skipped: dict[TableKey, float] = {}
        """End of each row's skipping, in seconds of the monotonic clock."""

    @property
    def is_counting(self) -> bool:
        """The record before failed too: whatever passes by itself has had its time."""
        return self._breaker.is_counting

    def must_stop(self, failure: AgentFailed) -> bool:
        """Return whether it fails on purpose, whatever the record."""
        return isinstance(failure.cause, self._stops)

    def succeeded(self) -> None:
        self._breaker.succeeded()

    def dead_letter(self, record: Any, failure: AgentFailed) -> Output:
        """Return the dead letter of a record that failed alone. Raises: EverythingFails; `failure` without one."""
        if self._reject is None or not isinstance(failure.cause, Exception):
            raise failure
        self._count(record.key, failure)
        return self._reject(record, failure.cause)

    def skip(self, row: TableKey, failure: AgentFailed) -> None:
        """Pass over a key for a while. Raises: EverythingFails; `failure` where records are not rejected either."""
        if self._reject is None or not isinstance(failure.cause, Exception) or len(self._skipped) >= SKIPPED:
            raise failure
        self._count(row[1], failure)
        self._skipped[row] = time.monotonic() + SKIP_SECONDS
        log.error(
            "deadline_passed_over",
            partition=self._where,
            stage="agent",
            error_type="unforeseen",
            problem=place_of(failure.cause),
            again_after_seconds=SKIP_SECONDS,
        )

    def skipped(self) -> set[TableKey]:
        """Return the keys that are passed over now."""
        now = time.monotonic()
        self._skipped = {row: until for row, until in self._skipped.items() if until > now}
        return set(self._skipped)

    def _count(self, key: bytes | None, failure: AgentFailed) -> None:
        self._breaker.failed(key)
        if self._breaker.is_open:
            number, found = self._breaker.failures, place_of(failure.cause)
            raise EverythingFails(where=self._where, number=number, failure=found) from failure
