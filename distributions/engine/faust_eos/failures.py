"""Failures: a single record that fails is retried and then rejected; if everything fails, the worker stops."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import structlog
from aiokafka.errors import KafkaError

from faust_eos.batch import Batches, Reject, current_batch
from faust_eos.errors import AgentFailed, EngineError, EverythingFails, OutputRefused, place_of
from faust_eos.options import Options
from faust_eos.transaction import Output, Slices

log = structlog.get_logger()

MAX_BATCH_BYTES = 1024 * 1024
"""Maximum number of bytes of records in one transaction, unless it has only one record."""
SKIP_SECONDS = 600.0
"""A due key on which the agent fails is skipped for this long."""

TableKey = tuple[str, bytes]
"""Table name and key."""
FAILURES = 20
"""The breaker opens after this many keys have failed in a row."""
HOLD_SECONDS = 10.0
"""A failed record waits this long for others to succeed or fail."""

Handle = Callable[[], Awaitable[None]]


class Breaker:
    """Counts the keys whose records failed alone since a record of this worker last succeeded.

    All partitions of a worker share one breaker: as long as other records succeed, the failing ones are to blame.
    """

    def __init__(self, failures: int = FAILURES) -> None:
        self._most = failures
        self._failed: set[bytes | None] = set()
        self._decided = asyncio.Event()

    @property
    def is_counting(self) -> bool:
        """True if a record failed and none has succeeded since."""
        return bool(self._failed)

    @property
    def is_open(self) -> bool:
        """True if records of many different keys failed, so that no single record is to blame."""
        return len(self._failed) >= self._most

    def failed(self, key: bytes | None) -> None:
        self._failed.add(key)
        if self.is_open:
            self._decided.set()

    def succeeded(self) -> None:
        if self._failed:
            self._failed.clear()
            self._decided.set()
            self._decided = asyncio.Event()

    async def decided(self) -> None:
        """Wait for the next success, or for the breaker to open, but at most `HOLD_SECONDS`."""
        if self.is_counting and not self.is_open:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._decided.wait(), HOLD_SECONDS)

    def check(self, where: str, error: BaseException) -> None:
        """Raises: EverythingFails if the breaker is open. `error` is the last failure."""
        if self.is_open:
            raise EverythingFails(where=where, number=len(self._failed), failure=place_of(error)) from error


class Isolation:
    """The failures of one partition: slice sizes, rejected records and skipped rows. It outlives the sessions."""

    def __init__(self, where: str, options: Options, breaker: Breaker, schema: Batches) -> None:
        self.slices = Slices(options.max_batch, MAX_BATCH_BYTES, options.max_written_bytes)
        self.ticks = Slices(options.tick_keys, MAX_BATCH_BYTES, options.max_written_bytes)
        self.breaker = breaker
        self._where = where
        self._reject = schema.reject
        self.stops: tuple[type[Exception], ...] = (EngineError, *schema.stops)
        """What an agent raises on purpose, to stop the worker whatever the record."""
        self._skipped: dict[TableKey, float] = {}
        """Until when each row is skipped, in seconds of the monotonic clock."""
        self._refused: dict[int, AgentFailed] = {}
        """Offsets of records that are not committed yet, and for which the agent wrote what Kafka refuses."""

    def dead_letter(self, record: Any, failure: AgentFailed) -> Output:
        """Return the dead letter of a record that failed even in a transaction of its own.

        Raises: EverythingFails; `failure` itself if the schema makes no dead letters.
        """
        reject, cause = self._blame(record.key, failure)
        return reject(record, cause)

    def _blame(self, key: bytes | None, failure: AgentFailed) -> tuple[Reject, Exception]:
        if self._reject is None or not isinstance(failure.cause, Exception):
            raise failure
        self.breaker.failed(key)
        self.breaker.check(self._where, failure.cause)
        return self._reject, failure.cause

    def refuse(self, error: OutputRefused, slices: Slices, number: int, first: Any) -> None:
        """Note that Kafka refuses the output of a slice: it is halved, or its only record, or row, is to blame.

        Raises: EverythingFails; AgentFailed if the schema makes no dead letters.
        """
        log.error("output_refused", partition=self._where, stage="commit", problem=str(error), records=number)
        slices.agent_failed(number)
        failure = AgentFailed(where=self._where, cause=error)
        if number > 1:
            return
        if isinstance(first, tuple):
            self.skip(first, failure)
        else:
            self._blame(first.key, failure)
            self._refused[first.offset] = failure

    def refusal(self, offset: int) -> AgentFailed | None:
        """Return why the output of the record at this offset, which is the next one, was refused before."""
        self._refused = {refused: failure for refused, failure in self._refused.items() if refused >= offset}
        return self._refused.get(offset)

    def skip(self, row: TableKey, failure: AgentFailed) -> None:
        """Skip a key for a while.

        Raises: EverythingFails; `failure` itself if the schema makes no dead letters.
        """
        self._blame(row[1], failure)
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
        """Return the keys that are skipped now."""
        now = time.monotonic()
        self._skipped = {row: until for row, until in self._skipped.items() if until > now}
        return set(self._skipped)


class Attempts:
    """Retries a record several times before it counts as the cause of the failure (at-least-once).

    `stops` lists errors for which no record is to blame, in addition to the engine's and Kafka's.
    """

    def __init__(
        self, breaker: Breaker, retries: int, stops: tuple[type[Exception], ...], wait_seconds: float = 0.5
    ) -> None:
        """`wait_seconds` is the wait before the first retry; it doubles with each one."""
        self._breaker = breaker
        self._retries = retries
        self._stops = (EngineError, KafkaError, *stops)
        self._wait = wait_seconds

    @property
    def most(self) -> int:
        """Number of times that a failing record is tried."""
        return self._retries + 1

    async def alone(self, key: bytes | None, where: str, handle: Handle) -> Exception | None:
        """Try until the record is done. If it fails every time, return the error of its last retry.

        Before that, wait until another record has succeeded, or for a while if none does. Raises: EverythingFails; the
        errors in `stops`.
        """
        error = await self._once(handle)
        for retry in range(self._retries):
            if error is None:
                return None
            log.error("record_failed", stage="agent", error_type=type(error).__name__, place=place_of(error))
            await asyncio.sleep(self._wait * 2**retry)
            error = await self._once(handle)
        if error is not None:
            self._breaker.failed(key)
            await self._breaker.decided()
            self._breaker.check(where, error)
        return error

    async def _once(self, handle: Handle) -> Exception | None:
        batch = current_batch()
        sent = len(batch.outputs) if batch else 0
        try:
            await handle()
        except self._stops:
            raise
        except Exception as error:  # noqa: BLE001 – the wrapper around a record's handler
            if batch:  # drop the failed try's records
                del batch.outputs[sent:]
            return error
        self._breaker.succeeded()
        return None
