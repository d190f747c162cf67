"""Outcomes of reading a history: messages, what it leaves out, and what it cannot take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO, NamedTuple, Protocol

import orjson

from afterword.schemas import InvalidRecord, MessageCreated
from afterword.schemas.base import rfc3339
from afterword.schemas.decoding import MAX_INPUT_BYTES, validate
from afterword.streams.errors import AfterwordError

MILLISECONDS_FROM = 1e11
"""Numbers from here on are milliseconds: as seconds they would be later than the year 5138."""


class HistoryRefused(AfterwordError):
    """{file}: {problem}"""


class LeftOut(NamedTuple):
    """A part of a history that is left out on purpose."""

    reason: str


class Rejected(NamedTuple):
    """A part of a history that cannot be taken; `reason` never repeats what was in it."""

    file: str
    record: int
    """Number of the record in the file, from 1 on."""
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.record}: {self.reason}"


ImportOutcome = MessageCreated | LeftOut | Rejected


class Place(NamedTuple):
    """Place of a message: a record of a file, and the part of it."""

    file: str
    record: int
    part: str = ""

    def rejected(self, reason: str) -> Rejected:
        return Rejected(self.file, self.record, f"{self.part}: {reason}" if self.part else reason)


@dataclass(frozen=True)
class ImportOptions:
    """Options of the user for a history."""

    user_id: str | None = None
    """User of the conversations whose file names none."""
    tenant_id: str | None = None
    prefix: str = ""
    """Prefix of every conversation's id."""


class Files(Protocol):
    """The files of a history by name; `/` separates a folder from what is in it."""

    @property
    def names(self) -> Sequence[str]: ...

    def open(self, name: str) -> BinaryIO:
        """Open a file to be read from its beginning. Raises: HistoryRefused, OSError."""
        ...


class Refused(ValueError):
    """Something in a record that cannot be taken; its text is the reason."""


def message(place: Place, options: ImportOptions, fields: Mapping[str, Any]) -> MessageCreated | Rejected:
    """Build a message of the fields, with the tenant and the prefix of the options."""
    named = {**fields, "conversation_id": f"{options.prefix}{fields['conversation_id']}"}
    if options.tenant_id is not None:
        named["tenant_id"] = options.tenant_id
    try:
        data = orjson.dumps(named)
        if len(data) > MAX_INPUT_BYTES:
            return place.rejected(f"too_large: {len(data)} bytes, at most {MAX_INPUT_BYTES} can be taken")
        return validate(MessageCreated, data)
    except orjson.JSONEncodeError:
        return place.rejected("schema_violation: nested too deeply, or an integer of more than 64 bits")
    except InvalidRecord as error:
        return place.rejected(str(error))


def rfc3339_of(value: object) -> str | None:
    """Convert seconds or milliseconds since 1970, or an ISO 8601 text (without an offset: UTC); None stays None.

    Raises: Refused.
    """
    if value is None:
        return None
    try:
        if isinstance(value, str):
            parsed = datetime.fromisoformat(value)
            return rfc3339((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).astimezone(UTC))
        if isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value / 1000 if abs(value) >= MILLISECONDS_FROM else value
            return rfc3339(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError):
        pass  # the error would repeat the value
    raise Refused("its time is neither seconds since 1970 nor ISO 8601")


def text(value: object) -> str | None:
    """Return a text that is not empty, or None."""
    return value if isinstance(value, str) and value else None


def mapping(value: object) -> Mapping[str, Any]:
    """Return an object, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> Sequence[Any]:
    """Return a list, or an empty one for anything else."""
    return value if isinstance(value, list) else ()
