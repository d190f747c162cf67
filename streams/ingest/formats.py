"""Reads values of foreign records: JSON, and Avro and Protobuf with schemas of a registry.

A registry's value begins with a zero byte and the schema's id in four bytes, unless the id is in a header.
"""

import binascii
import io
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import UUID

import fastavro
import orjson
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from afterword.schemas import InvalidRecord
from afterword.schemas.records import RecordHeaders, loads

MAGIC, PREFIX_BYTES = 0, 5
MAX_SCHEMA_DEPTH = 64

Read = Callable[[bytes], Any]
"""Reads what follows a schema's id. It raises InvalidRecord."""


class SchemaRefused(ValueError):
    """A schema that cannot be used; the error's text is the reason."""


MAX_VALUES = 200_000
"""Maximum number of values in a record. Reading and mapping them takes a second at most."""


class SchemaId(NamedTuple):
    """Where a registry has a schema."""

    number: int | str
    kind: str = "ids"
    """`ids`, `guids`, or `globalIds`: Apicurio's numbers of versions, unknown to its Confluent-compatible API."""


INVALID_FRAMING = "invalid_framing"
UNFRAMED = "it does not begin with a zero byte and a schema's id"
Part = Literal["key", "value"]
FRAMINGS: Sequence[Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_name("framings.toml").read_text(encoding="utf-8")
)["framings"]


def read_json(data: bytes) -> Any:
    """Read JSON. Raises: InvalidRecord."""
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise InvalidRecord("too_large", f"more than {MAX_VALUES} commas and brackets")
    try:
        return loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRecord("invalid_json", f"not JSON at column {error.colno}") from None


def unframed(data: bytes, headers: RecordHeaders = (), part: Part = "value") -> tuple[SchemaId, bytes]:
    """Split a framed value, or key, into its schema's id and the rest. Raises: InvalidRecord."""
    lines = [b"%s: %s" % (name.encode(), value or b"") for name, value in headers]
    for framing in FRAMINGS:
        kind, pattern = framing.get("kind"), re.compile(framing["start"].replace("PART", part).encode(), re.DOTALL)
        for text in (*lines, data):
            if (found := pattern.match(text)) is None:
                continue
            if not kind:
                raise InvalidRecord(INVALID_FRAMING, framing["problem"])
            number = str(UUID(bytes=found[1])) if kind == "guids" else int.from_bytes(found[1])
            # what follows in a header are a Protobuf message's indexes
            return SchemaId(number, kind), text[found.end() :] + (b"" if text is data else data)
    raise InvalidRecord(INVALID_FRAMING, UNFRAMED)


def read_json_of(data: bytes, headers: RecordHeaders) -> Any:
    """Read JSON, or say which framing the value has instead. Raises: InvalidRecord."""
    try:
        return read_json(data)
    except InvalidRecord as error:
        try:
            _, rest = unframed(data, headers)
        except InvalidRecord as framing:
            raise (error if framing.detail == UNFRAMED else framing) from None
        where = "in front of it" if len(rest) < len(data) else "in a header"
        problem = f"its schema's id is {where}: set format to avro, json-schema or protobuf"
        raise InvalidRecord(INVALID_FRAMING, problem) from None


PRIMITIVES = frozenset({"boolean", "int", "long", "float", "double", "bytes", "string"})
AVRO_ERRORS = (EOFError, LookupError, ValueError, TypeError, ArithmeticError, MemoryError)
"""Errors that fastavro raises for bytes that do not match the schema."""
MAX_AVRO_VALUES = 2_000_000
"""Maximum number of values that a record's bytes may turn into, which take at most some 400 MB of memory."""


class AvroSchema:
    """Reads records of an Avro schema within limits. fastavro has none, and its recursion would end the process.

    Logical types are read as their underlying types.
    """

    def __init__(self, schema: str, references: Mapping[str, str]) -> None:
        """`references` are the schemas of the types that it names, each after those that it depends on.

        Raises: SchemaRefused.
        """
        named: dict[str, Any] = {}
        try:
            for text in (*references.values(), schema):
                self._schema = fastavro.parse_schema(_plain(orjson.loads(text)), named_schemas=named)
            self._most_bytes = MAX_AVRO_VALUES // _depth(self._schema, named, {})
        except SchemaRefused:
            raise
        except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, RecursionError, *AVRO_ERRORS):
            raise SchemaRefused("it is not an Avro schema") from None

    def read(self, data: bytes) -> Any:
        """Read a value. Raises: InvalidRecord."""
        if len(data) > self._most_bytes:
            raise InvalidRecord("too_large", f"{len(data)} bytes; at most {self._most_bytes} of this schema are read")
        stream = io.BytesIO(data)
        try:
            value = fastavro.schemaless_reader(stream, self._schema, None)
        except AVRO_ERRORS as error:  # the error's text quotes the bytes
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
    return [_plain(part, depth + 1) for part in schema] if isinstance(schema, list) else schema


def _depth(schema: Any, named: Mapping[str, Any], known: dict[str, int]) -> int:
    """Return how many values one byte may stand for: how deeply types are nested.

    That holds because every value inside takes at least one byte. `known` has the depths of named types, 0 for those
    that contain this one. Raises: SchemaRefused for a value without bytes, or a type that contains itself: there may be
    billions of such values.
    """
    if isinstance(schema, list):  # a value of a union begins with the number of its type
        are_empty = [one == "null" or (isinstance(one, dict) and one.get("fields") == []) for one in schema]
        others = [one for one, is_empty in zip(schema, are_empty, strict=True) if not is_empty]
        return 1 + max((_depth(one, named, known) for one in others), default=0)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind in PRIMITIVES or kind == "enum" or (kind == "fixed" and schema["size"] > 0):
        return 1
    if kind in ("array", "map"):
        return 1 + _depth(schema["items" if kind == "array" else "values"], named, known)
    if kind in ("record", "error") and schema["fields"]:
        known[schema["name"]] = 0
        known[schema["name"]] = 1 + max(_depth(field["type"], named, known) for field in schema["fields"])
        return known[schema["name"]]
    if kind in ("null", "fixed", "record", "error"):
        raise SchemaRefused(f"a {kind} takes no bytes")
    if isinstance(kind, dict | list):  # {"type": {"type": "array", …}}
        return _depth(kind, named, known)
    if known.get(kind) == 0:
        raise SchemaRefused(f"type {kind} contains itself")
    return known.get(kind) or _depth(named[kind], named, known)


WELL_KNOWN = re.compile(r"google/(protobuf|type)/[a-z_]+\.proto")
"""Files that every schema may import. Registries do not list them among the references."""
PROTOBUF_ERRORS = (DecodeError, json_format.Error, ValueError, TypeError, RecursionError)
"""Errors that the library raises for bytes that do not match the schema."""
BYTES_PER_VALUE = 16
"""The bytes of an `Any` count, too, because each `Any` in another has a copy of what it contains."""


class ProtobufSchema:
    """Reads records of a Protobuf schema as its JSON mapping defines, with the field names of the schema.

    No generated code is needed, because a registry gives a schema's descriptor. In the wire format of registries, a
    message follows the indexes of its type in the schema's file: `[0]` for the first type, `[0, 2]` for the third type
    nested in it. The indexes are zigzag varints after their count; a single zero stands for `[0]`. Apicurio's
    serializer writes the type's name instead.
    """

    def __init__(self, schema: str, references: Mapping[str, str]) -> None:
        """`schema` is a serialized descriptor in Base64. `references` has the descriptors of imported files by name,
        each after those that it imports itself.

        Raises: SchemaRefused if a descriptor is invalid, or is none.
        """
        self._pool = DescriptorPool()
        known: set[str] = set()
        for name, text in {**references, "": schema}.items():
            self._add(descriptor_file(name, text), known)
        messages = list(_messages(self._pool.FindFileByName("").message_types_by_name.values()))
        names = Counter(name for _, message in messages for name in {message.name, message.full_name})
        self._types: dict[bytes, Descriptor] = {}
        """The messages by the bytes that stand before them: Apicurio's name, or indexes."""
        for message in (message for _, message in messages):
            for name in (one for one in (message.name, message.full_name) if names[one] == 1):
                start = b"\n" + _varint(len(name)) + name.encode()
                self._types[_varint(len(start)) + start] = message
        self._types |= dict([(b"\0", messages[0][1]), *messages] if messages else [])

    def _add(self, file: FileDescriptorProto, known: set[str]) -> None:
        for name in set(file.dependency) - known:
            self._add(_well_known(name), known)
        known.add(file.name)
        try:
            self._pool.Add(file)
        except TypeError as error:
            raise SchemaRefused(f"it is not a Protobuf schema: {str(error).rpartition(': ')[2][:200]}") from None

    def read(self, data: bytes) -> Any:
        """Read a message after its indexes. Raises: InvalidRecord."""
        start = next((start for start in self._types if data.startswith(start)), None)
        if start is None:
            raise InvalidRecord(INVALID_FRAMING, "it does not begin with the indexes or name of its schema's message")
        message = GetMessageClass(self._types[start])()
        try:
            message.ParseFromString(data[len(start) :])
            if self._count(message) > MAX_VALUES:
                raise InvalidRecord("too_large", f"more than {MAX_VALUES} values")
            return json_format.MessageToDict(
                message,
                always_print_fields_with_no_presence=True,
                preserving_proto_field_name=True,
                descriptor_pool=self._pool,
            )
        except InvalidRecord:
            raise
        except PROTOBUF_ERRORS as error:  # the error's text quotes the bytes
            raise InvalidRecord("invalid_protobuf", f"not of its schema: {type(error).__name__}") from None

    def _count(self, value: Any) -> int:
        """Return how many values a field has in a dict. Even a message of two bytes may have many fields, all of which
        are shown.

        Raises: InvalidRecord.
        """
        if isinstance(value, str | bytes | int | float):
            return 0
        if not isinstance(value, Message):
            inside = value.values() if isinstance(value, Mapping) else value
            return len(value) + sum(map(self._count, inside))
        if value.DESCRIPTOR.full_name != "google.protobuf.Any" or not value.type_url:
            return len(value.DESCRIPTOR.fields) + sum(self._count(inner) for _, inner in value.ListFields())
        try:
            descriptor = self._pool.FindMessageTypeByName(value.type_url.rpartition("/")[2])
        except KeyError:
            raise InvalidRecord("invalid_protobuf", "an Any has a type that its schema does not import") from None
        inside = value.value
        return len(inside) // BYTES_PER_VALUE + self._count(GetMessageClass(descriptor).FromString(inside))


def descriptor_file(name: str, text: str) -> FileDescriptorProto:
    """Read a serialized descriptor in Base64. Raises: SchemaRefused."""
    try:
        file = FileDescriptorProto.FromString(binascii.a2b_base64(text, strict_mode=True))
    except (ValueError, DecodeError):
        problem = "the registry has its .proto text only: register its descriptor in Base64, as confluent-kafka does"
        raise SchemaRefused(problem) from None
    file.name = name
    return file


def _well_known(name: str) -> FileDescriptorProto:
    """Return one of Google's files, or an empty file for any other name, because imports that only define options are
    not needed."""
    if WELL_KNOWN.fullmatch(name):
        with suppress(ImportError):
            module = import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2")
            return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    return FileDescriptorProto(name=name)


def _messages(types: Iterable[Descriptor], path: tuple[int, ...] = ()) -> Iterator[tuple[bytes, Descriptor]]:
    """Return types after the bytes of their indexes. Entries of maps do not count, as in Confluent's serializer."""
    for index, message in enumerate(message for message in types if not message.GetOptions().map_entry):
        inner = (*path, index)
        yield b"".join(_varint(2 * number) for number in (len(inner), *inner)), message
        yield from _messages(message.nested_types, inner)


def _varint(number: int) -> bytes:
    return bytes([number & 127 | 128]) + _varint(number >> 7) if number > 127 else bytes([number])
