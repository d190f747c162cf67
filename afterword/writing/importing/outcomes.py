"""What becomes of the parts of a history: they are messages, left out, or rejected."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from afterword.schemas import InvalidRecord, MessageCreated
from afterword.schemas.base import rfc3339
from afterword.schemas.decoding import MAX_INPUT_BYTES, validate

MILLISECONDS_FROM = 1e11
"""Numbers from here on are milliseconds: as seconds they would be after the year 5138."""
DIGITS = re.compile(r"\d+(\.\d*)?", re.ASCII)
YEARS = range(1990, 2100)
"""A time outside these years must be in another unit, or stand for an unknown one."""


class Refused(ValueError):
    """Part of a record cannot be imported. The text gives the reason and never repeats the content."""


class LeftOut(NamedTuple):
    """Parts of a history that are not messages."""

    reason: str
    number: int = 1


class Rejected(NamedTuple):
    """A part of a history that cannot be imported."""

    where: str
    """The file, the record's number in it, and the message's number."""
    reason: str
    messages: int = 1
    """Number of messages in it."""

    def __str__(self) -> str:
        number = f" ({self.messages:,} messages)" if self.messages > 1 else ""
        return f"{self.where}: {self.reason}{number}"


class Found(NamedTuple):
    """A message of a history."""

    where: str
    message: MessageCreated
    is_shared: bool = False
    """Whether its conversation may belong to several users."""


ImportOutcome = Found | LeftOut | Rejected


@dataclass(frozen=True)
class ImportOptions:
    """The caller's options for an import."""

    user_id: str | None = None
    """The user of records that name none."""
    tenant_id: str | None = None
    prefix: str = ""
    """A prefix for every conversation id."""


def found(where: str, options: ImportOptions, fields: Mapping[str, Any], is_shared: bool = False) -> Found | Rejected:
    """Build a message from the fields, with the tenant and the prefix of the options."""
    named = {**fields, "conversation_id": f"{options.prefix}{fields['conversation_id']}"}
    if options.tenant_id is not None:
        if named.get("tenant_id") not in (None, options.tenant_id):
            return Rejected(where, "its tenant is not the one given with --tenant")
        named["tenant_id"] = options.tenant_id
    try:
        data = orjson.dumps(named)
        if len(data) > MAX_INPUT_BYTES:
            return Rejected(where, f"too_large: {len(data)} bytes; at most {MAX_INPUT_BYTES} are accepted")
        return Found(where, validate(MessageCreated, data), is_shared)
    except orjson.JSONEncodeError:
        return Rejected(where, "schema_violation: nested too deeply, or an integer of more than 64 bits")
    except InvalidRecord as error:
        return Rejected(where, str(error))


def outcomes_of(
    where: str, options: ImportOptions, messages: Sequence[Mapping[str, Any]], is_shared: bool = False
) -> list[ImportOutcome]:
    """Build our messages from one message of a history. Without any it is left out as empty."""
    return [found(where, options, fields, is_shared) for fields in messages] or [LeftOut("empty")]


def rfc3339_of(value: object) -> str | None:
    """Convert a time to RFC 3339; None and an empty string give None.

    Accepted are seconds or milliseconds since 1970, as a number or a string of digits, and ISO 8601, in UTC unless it
    has an offset. Raises: Refused.
    """
    if value is None or value == "":
        return None
    try:
        if isinstance(value, str) and not DIGITS.fullmatch(value.strip()):
            parsed = datetime.fromisoformat(value.strip())
            time = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).astimezone(UTC)
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            number = float(value)
            time = datetime.fromtimestamp(number / 1000 if abs(number) >= MILLISECONDS_FROM else number, UTC)
        else:
            raise ValueError("another type")
        if time.year in YEARS:
            return rfc3339(time)
    except (ValueError, OverflowError, OSError):
        pass  # the original error would repeat the value
    raise Refused("its time is neither seconds or milliseconds since 1970 nor ISO 8601")


def text(value: object) -> str | None:
    """Return a non-empty string, or None."""
    return value if isinstance(value, str) and value else None


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> Sequence[Any]:
    """Return a list, or an empty one for anything else."""
    return value if isinstance(value, list) else ()
