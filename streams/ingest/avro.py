"""Reads records in Avro within limits. fastavro has none, and its recursion would end the process."""

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import fastavro
import orjson

from afterword.schemas import InvalidRecord
from afterword.streams.ingest.decoding import MAX_SCHEMA_DEPTH, MAX_VALUES, SchemaRefused

BYTES_OF_PRIMITIVE = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}
UNREADABLE = (EOFError, LookupError, ValueError, TypeError, ArithmeticError, MemoryError)
"""Errors that fastavro raises for bytes that do not match the schema."""


class Expansion(NamedTuple):
    """Limits on how many values a type's bytes can become: `base`, plus `rate` for each byte.

    `least` is the smallest number of bytes that the type has.
    """

    least: int
    base: float
    rate: float


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
            self._expansion = _Bounds(named).of(self._schema)
        except SchemaRefused:
            raise
        except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, RecursionError, *UNREADABLE):
            raise SchemaRefused("it is not an Avro schema") from None

    def read(self, data: bytes) -> Any:
        """Read a value. Raises: InvalidRecord."""
        if self._expansion.base + self._expansion.rate * len(data) > MAX_VALUES:
            raise InvalidRecord("too_large", f"{len(data)} bytes of this schema may be more than {MAX_VALUES} values")
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


class _Bounds:
    """Computes the limits of a parsed schema's types, once for each named type."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._known: dict[str, Expansion] = {}
        self._inside: list[str] = []

    def of(self, schema: Any) -> Expansion:
        """Raises: SchemaRefused."""
        if isinstance(schema, list):
            return self._of_union([self.of(one) for one in schema])
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind in BYTES_OF_PRIMITIVE:
            least = BYTES_OF_PRIMITIVE[kind]
            return Expansion(least, 0, 1) if least else Expansion(0, 1, 0)
        if isinstance(schema, str):
            return self._of_name(schema)
        if kind in ("array", "map"):
            return self._of_elements(self.of(schema["items" if kind == "array" else "values"]), is_map=kind == "map")
        if kind in ("record", "error"):
            return self._of_record(schema)
        if kind == "fixed":
            return Expansion(max(0, schema["size"]), 1, 0)
        return Expansion(1, 0, 1) if kind == "enum" else self.of(kind)  # {"type": {"type": "array", …}}

    def _of_name(self, name: str) -> Expansion:
        if name in self._inside:
            raise SchemaRefused(f"type {name} contains itself")
        return self._known[name] if name in self._known else self.of(self._named[name])

    def _of_union(self, each: list[Expansion]) -> Expansion:
        if not each:
            raise SchemaRefused("it has a union of no types")
        return Expansion(1 + min(one.least for one in each), 0, max(max(one.base, one.rate) for one in each))

    def _of_elements(self, element: Expansion, *, is_map: bool) -> Expansion:
        least = element.least + is_map  # the name's length takes at least one byte
        if not least:
            raise SchemaRefused("an array has elements without any bytes: there may be billions of them")
        return Expansion(1, 1, element.rate + element.base / least + is_map)

    def _of_record(self, schema: Mapping[str, Any]) -> Expansion:
        name = schema["name"]
        self._inside.append(name)
        fields = [self.of(field["type"]) for field in schema["fields"]]
        self._inside.pop()
        least, base = sum(one.least for one in fields), 1 + sum(one.base for one in fields)
        rate = max((one.rate for one in fields), default=0.0)
        self._known[name] = found = Expansion(least, 0, rate + base / least) if least else Expansion(0, base, rate)
        return found
