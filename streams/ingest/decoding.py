"""What all formats of foreign records share: JSON, limits, and the framing of schema registries.

The framing is a zero byte and a four-byte schema id before the value.
"""

from collections.abc import Callable
from typing import Any

import orjson

from afterword.schemas import InvalidRecord
from afterword.schemas.decoding import loads

MAGIC, PREFIX_BYTES = 0, 5
MAX_VALUES = 2_000_000
"""Maximum number of values that a record's bytes may turn into, which take at most some 400 MB of memory."""
MAX_SCHEMA_DEPTH = 64

Read = Callable[[bytes], Any]
"""Reads what follows a schema's id. It raises InvalidRecord."""


class SchemaRefused(ValueError):
    """A schema that cannot be used; the error's text is the reason."""


def read_json(data: bytes) -> Any:
    """Read JSON. Raises: InvalidRecord."""
    try:
        return loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRecord("invalid_json", f"not JSON at column {error.colno}") from None


def unframed(data: bytes) -> tuple[int, bytes]:
    """Split a framed value into its schema's id and the rest. Raises: InvalidRecord."""
    if len(data) < PREFIX_BYTES or data[0] != MAGIC:
        raise InvalidRecord("invalid_framing", "it does not begin with a zero byte and a schema's id")
    return int.from_bytes(data[1:PREFIX_BYTES]), data[PREFIX_BYTES:]
