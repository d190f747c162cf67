"""Values of other applications, as ingest and imports read them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from afterword.schemas.records import MAX_INPUT_BYTES, InvalidRecord

Unit = Literal["iso", "s", "ms", "us", "ns"]
SECONDS: Mapping[Unit, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
YEARS = range(1990, 2100)
"""A time outside these years must be in a different unit."""
UNENCODABLE = "a field is bytes, is nested too deeply, or has an integer of more than 64 bits"
"""Why fields cannot be encoded."""


def encoded(fields: Mapping[str, Any]) -> bytes:
    """Encode the fields of a message. Raises: orjson.JSONEncodeError, InvalidRecord if they are too large."""
    data = orjson.dumps(fields)
    if len(data) > MAX_INPUT_BYTES:
        raise InvalidRecord("too_large", f"{len(data)} bytes; at most {MAX_INPUT_BYTES} are accepted")
    return data


def id_of(value: object) -> str | None:
    """Return a string, or an integer as a string; None for any other value."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def moment_of(value: object, unit: Unit) -> datetime | None:
    """Read a time in this unit, in UTC unless it has an offset; None if it is not within `YEARS`."""
    try:
        if unit == "iso" and isinstance(value, str):
            parsed = datetime.fromisoformat(value.strip())
            moment = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).astimezone(UTC)
        elif unit != "iso" and isinstance(value, int | float | str) and not isinstance(value, bool):
            moment = datetime.fromtimestamp(float(value) * SECONDS[unit], UTC)
        else:
            return None
    except (ValueError, OverflowError, OSError):
        return None
    return moment if moment.year in YEARS else None
