"""When a fallback is tried to be replaced by what the LLM writes, and what its record says about it. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from afterword.schemas import InvalidRecord
from afterword.schemas.base import rfc3339
from afterword.schemas.headers import Headers, header
from afterword.streams.errors import BudgetExhausted, ProviderError, ProviderMisconfigured, ProviderUnavailable
from afterword.streams.settings import Retry

PREFIX = "afterword_retry_"
NUMBER, UNUSABLE, NOT_BEFORE = PREFIX + "number", PREFIX + "unusable", PREFIX + "not_before"
PASSING = (ProviderUnavailable, ProviderMisconfigured, BudgetExhausted)
"""What says nothing about the episode: the LLM did not answer at all."""
MOST_DOUBLINGS = 30


@dataclass(frozen=True)
class Try:
    """One attempt to replace a fallback."""

    number: int
    """1, 2 …"""
    unusable: int
    """How many of those before ended with an answer that could not be used."""
    not_before: datetime | None
    """None: at once."""


def first_try(retry: Retry, now: datetime) -> Try | None:
    """None when fallbacks are to stay."""
    return _try(1, 0, retry, now)


def next_try(failed: Try, error: ProviderError, retry: Retry, now: datetime) -> Try | None:
    """After `failed`, which ended with that error; None when it was the last one."""
    return _try(failed.number + 1, failed.unusable + (not isinstance(error, PASSING)), retry, now)


def delay_seconds(number: int, retry: Retry) -> float:
    """Doubling, bounded: whatever is put on the topic is due within `longest_delay_seconds`, as is all before it."""
    doublings = min(number - 1, MOST_DOUBLINGS)
    return min(retry.first_delay_seconds * float(2**doublings), retry.longest_delay_seconds)


def headers_of(attempt: Try) -> Headers:
    said = {NUMBER: str(attempt.number), UNUSABLE: str(attempt.unusable)}
    if attempt.not_before is not None:
        said[NOT_BEFORE] = rfc3339(attempt.not_before)
    return [(name, value.encode()) for name, value in said.items()]


def try_from(headers: Sequence[tuple[str, bytes | None]]) -> Try:
    """A record without these headers, such as a copy from `episode.closed`, is a first try, due now.

    Raises: InvalidRecord.
    """
    number, unusable = (_count(headers, name) for name in (NUMBER, UNUSABLE))
    return Try(max(number, 1), unusable, _moment(header(headers, NOT_BEFORE)))


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
