"""Decodes values of foreign records: JSON, or JSON, Avro and Protobuf in the wire format of schema registries.

In that format, a zero byte and the schema's id in four bytes precede the value. JSON can be read without its schema.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from afterword.schemas import InvalidRecord
from afterword.schemas.decoding import loads
from afterword.streams.ingest.sources import Format

MAGIC, PREFIX_BYTES = 0, 5
MAX_VALUES = 2_000_000
"""Maximum number of values that a record's bytes may turn into, which take at most some 400 MB of memory."""
MAX_SCHEMA_DEPTH = 64

Read = Callable[[bytes], Any]
"""Reads what follows a schema's id. It raises InvalidRecord."""


class SchemaRefused(ValueError):
    """A schema that cannot be used; the error's text is the reason."""


def decoder(form: Format, reader: Callable[[Format, int], Awaitable[Read]]) -> Callable[[bytes | None], Awaitable[Any]]:
    """Return a function that decodes values in this format. `reader` looks up a schema by its id.

    A record without a value is null. The function raises InvalidRecord and what `reader` raises.
    """

    async def decode(data: bytes | None) -> Any:
        if data is None:
            return None
        if form == "json":
            return read_json(data)
        number, rest = unframed(data)
        return read_json(rest) if form == "json-schema" else (await reader(form, number))(rest)

    return decode


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
