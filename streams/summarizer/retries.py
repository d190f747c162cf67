"""Retries of fallbacks: their schedule, the headers of their records, and the hold until a retry is worth making."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import stamina
import structlog

from afterword.schemas import InvalidRecord
from afterword.schemas.base import rfc3339
from afterword.schemas.headers import Headers, KafkaRecord, header
from afterword.streams.errors import BudgetExhausted, ProviderError, ProviderUnavailable
from afterword.streams.settings import Retry
from afterword.streams.summarizer.providers import Provider

STAGE = "retry"
PREFIX = "afterword_retry_"
NUMBER, UNUSABLE, NOT_BEFORE = PREFIX + "number", PREFIX + "unusable", PREFIX + "not_before"
WAITS = PREFIX + "waits"
TRANSIENT = (ProviderUnavailable, BudgetExhausted)
"""Errors that say nothing about the episode: the LLM did not answer at all."""
MOST_DOUBLINGS = 30
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 60.0
JITTER_SECONDS = 1.0

log = structlog.get_logger()


@dataclass(frozen=True)
class Try:
    """One attempt to replace a fallback, or to make a change that the archive did not have."""

    number: int
    """1, 2 …"""
    unusable: int
    """Number of earlier attempts whose answer could not be used."""
    not_before: datetime | None
    """None: at once."""
    waits: bool = False
    """Nothing was made of the record yet: it waits for the archive."""


def first_try(retry: Retry, now: datetime) -> Try | None:
    """Schedule the first attempt; None when fallbacks are kept."""
    return _try(1, 0, retry, now)


def next_try(failed: Try, error: ProviderError, retry: Retry, now: datetime) -> Try | None:
    """Schedule the attempt after `failed`, which ended with `error`; None when that was the last one."""
    return _try(failed.number + 1, failed.unusable + (not isinstance(error, TRANSIENT)), retry, now)


def put_aside(number: int, retry: Retry, now: datetime) -> Try:
    """Schedule a record that waits for the archive, as often as it takes."""
    return Try(number, 0, now + timedelta(seconds=delay_seconds(number, retry)), waits=True)


def delay_seconds(number: int, retry: Retry) -> float:
    """Double the delay up to `longest_delay_seconds`: a record, and all before it on the topic, is due within that."""
    doublings = min(number - 1, MOST_DOUBLINGS)
    return min(retry.first_delay_seconds * float(2**doublings), retry.longest_delay_seconds)


def headers_of(attempt: Try) -> Headers:
    fields = {NUMBER: str(attempt.number), UNUSABLE: str(attempt.unusable)}
    if attempt.not_before is not None:
        fields[NOT_BEFORE] = rfc3339(attempt.not_before)
    if attempt.waits:
        fields[WAITS] = "1"
    return [(name, value.encode()) for name, value in fields.items()]


def try_from(headers: Sequence[tuple[str, bytes | None]]) -> Try:
    """Read the attempt of a record. Without these headers, as in a copy from `episode.closed`, it is a first, due now.

    Raises: InvalidRecord.
    """
    number, unusable, waits = (_count(headers, name) for name in (NUMBER, UNUSABLE, WAITS))
    return Try(max(number, 1), unusable, _moment(header(headers, NOT_BEFORE)), bool(waits))


def waits_for_archive(record: KafkaRecord) -> bool:
    """Tell whether the record is a change that was put aside: nothing was made of it yet."""
    return header(record.headers, WAITS) is not None


def seconds_until_due(record: KafkaRecord, now: datetime, longest: float) -> float:
    """Return 0 … `longest`: a clock that was wrong when the record was written must not stop the partition."""
    try:
        due = try_from(record.headers).not_before
    except InvalidRecord:
        return 0.0  # the handler rejects it
    return 0.0 if due is None else min(max(0.0, (due - now).total_seconds()), longest)


class RetryHold:
    """Holds a record of `episode.retry` back until it is due, and a fallback until the LLM answers. It rejects none.

    A change that waits for the archive needs no LLM, or falls back.
    """

    def __init__(self, llm: Provider, retry: Retry, clock: Callable[[], datetime]) -> None:
        self._llm = llm
        self._longest_delay_seconds = retry.longest_delay_seconds
        self._clock = clock
        self._checking = asyncio.Lock()  # one partition checks for all of the worker's

    async def hold(self, record: KafkaRecord) -> None:
        await asyncio.sleep(seconds_until_due(record, self._clock(), self._longest_delay_seconds))
        if waits_for_archive(record):
            return
        async with self._checking:
            with suppress(ProviderError):  # an LLM that cannot be checked can still be tried
                await self._until_available()

    async def _until_available(self) -> None:
        async for attempt in stamina.retry_context(
            on=ProviderUnavailable,
            attempts=None,
            timeout=None,
            wait_initial=FIRST_WAIT_SECONDS,
            wait_max=LONGEST_WAIT_SECONDS,
            wait_jitter=JITTER_SECONDS,
        ):
            with attempt:
                await self._check(attempt.num)

    async def _check(self, number: int) -> None:
        try:
            await self._llm.check()
        except ProviderUnavailable as error:
            if number == 1:
                log.info("retries_paused", stage=STAGE, error_type=error.error_type)
            raise


def _try(number: int, unusable: int, retry: Retry, now: datetime) -> Try | None:
    if number > retry.attempts or unusable >= retry.unusable_answers:
        return None
    return Try(number, unusable, now + timedelta(seconds=delay_seconds(number, retry)))


def _count(headers: Sequence[tuple[str, bytes | None]], name: str) -> int:
    text = header(headers, name) or "0"
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InvalidRecord("schema_violation", f"header {name}: not a number of tries")
    return int(text)


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRecord("schema_violation", f"header {NOT_BEFORE}: not a time") from None
