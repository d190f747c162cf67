"""Reads records in Avro within limits. fastavro has none, and its recursion would end the process."""

import io
from collections.abc import Mapping
from typing import Any

import fastavro
import orjson

from afterword.schemas import InvalidRecord
from afterword.streams.ingest.decoding import MAX_SCHEMA_DEPTH, MAX_VALUES, SchemaRefused

PRIMITIVES = frozenset({"boolean", "int", "long", "float", "double", "bytes", "string"})
UNREADABLE = (EOFError, LookupError, ValueError, TypeError, ArithmeticError, MemoryError)
"""Errors that fastavro raises for bytes that do not match the schema."""


class AvroSchema:
    """Reads records of a schema. Logical types are read as their underlying types."""

    def __init__(self, schema: str, references: Mapping[str, str]) -> None:
        """`references` are the schemas of the types that it names, each after those that it depends on.

        Raises: SchemaRefused.
        """
        named: dict[str, Any] = {}
        try:
            for one in references.values():
                fastavro.parse_schema(_plain(orjson.loads(one)), named_schemas=named)
            self._schema = fastavro.parse_schema(_plain(orjson.loads(schema)), named_schemas=named)
            self._most_bytes = MAX_VALUES // _depth(self._schema, named, {})
        except SchemaRefused:
            raise
        except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, RecursionError, *UNREADABLE):
            raise SchemaRefused("it is not an Avro schema") from None

    def read(self, data: bytes) -> Any:
        """Read a value. Raises: InvalidRecord."""
        if len(data) > self._most_bytes:
            raise InvalidRecord("too_large", f"{len(data)} bytes; at most {self._most_bytes} of this schema are read")
        stream = io.BytesIO(data)
        try:
            value = fastavro.schemaless_reader(stream, self._schema, None)
        except UNREADABLE as error:  # the error's text quotes the bytes
            raise InvalidRecord("invalid_avro", f"not of its schema: {type(error).__name__}") from None
        if stream.tell() != len(data):
            raise InvalidRecord("invalid_avro", f"not of its schema: {len(data) - stream.tell()} bytes are left over")
        return value


def _plain(schema: Any, depth: int = 0) -> Any:
    """Remove logical types, so that a timestamp is a number and no decimal with a million digits is made.

    Raises: SchemaRefused.
    """
    if depth > MAX_SCHEMA_DEPTH:
        raise SchemaRefused("it is nested too deeply")
    if isinstance(schema, dict):
        return {name: _plain(value, depth + 1) for name, value in schema.items() if name != "logicalType"}
    return [_plain(one, depth + 1) for one in schema] if isinstance(schema, list) else schema


def _depth(schema: Any, named: Mapping[str, Any], known: dict[str, int]) -> int:
    """Return how many values one byte may stand for: how deeply types are nested.

    That holds because every value inside takes at least one byte. `known` has the depths of named types, 0 for those
    that contain this one. Raises: SchemaRefused for a value without bytes, or a type that contains itself: there may be
    billions of such values.
    """
    if isinstance(schema, list):  # a value of a union begins with the number of its type
        others = [one for one in schema if one != "null" and not (isinstance(one, dict) and one.get("fields") == [])]
        return 1 + max((_depth(one, named, known) for one in others), default=0)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind in PRIMITIVES or kind == "enum" or (kind == "fixed" and schema["size"] > 0):
        return 1
    if kind in ("array", "map"):
        return 1 + _depth(schema["items" if kind == "array" else "values"], named, known)
    if kind in ("record", "error") and schema["fields"]:
        known[schema["name"]] = 0
        inside = max(_depth(field["type"], named, known) for field in schema["fields"])
        known[schema["name"]] = 1 + inside
        return 1 + inside
    if kind in ("null", "fixed", "record", "error"):
        raise SchemaRefused(f"a {kind} takes no bytes")
    if isinstance(kind, dict | list):  # {"type": {"type": "array", …}}
        return _depth(kind, named, known)
    if known.get(kind) == 0:
        raise SchemaRefused(f"type {kind} contains itself")
    return known.get(kind) or _depth(named[kind], named, known)
