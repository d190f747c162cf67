"""Schemas and records in Protobuf, without generated code: a registry gives a schema's descriptor.

In the wire format of registries, a message follows the indexes of its type in the schema's file: `[0]` for the first
type, `[0, 2]` for the third type nested in it. The indexes are zigzag varints after their count; a single zero stands
for `[0]`.
"""

import binascii
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from afterword.schemas import InvalidRecord
from afterword.streams.errors import ConfigurationError
from afterword.streams.ingest.decoding import MAX_SCHEMA_DEPTH, SchemaRefused
from afterword.streams.settings import variable

WELL_KNOWN = re.compile(r"google/(protobuf|type)/[a-z_]+\.proto")
"""Files that every schema may import. Registries do not list them among the references."""
UNREADABLE = (DecodeError, json_format.Error, ValueError, TypeError, RecursionError)
"""Errors that the library raises for bytes that do not match the schema."""
MAX_VALUES = 200_000
"""Maximum number of values in a record; the library takes a few microseconds for each."""
BYTES_PER_VALUE = 16
"""The bytes of an `Any` count, too, because each `Any` in another has a copy of what it contains."""
VARINT_BYTES = 5
"""Maximum length of a message index."""


class ProtobufSchema:
    """Reads records of a schema as Protobuf's JSON mapping defines, with the field names of the schema."""

    def __init__(self, schema: str, references: Mapping[str, str]) -> None:
        """`schema` is a serialized descriptor in Base64; `references` are those of the files that it imports, by name.

        Each comes after those that it imports itself. Raises: SchemaRefused; ConfigurationError if the registry cannot
        serialize descriptors.
        """
        self._pool = DescriptorPool()
        known: set[str] = set()
        for name, text in {**references, "": schema}.items():
            self._add(_file(name, text), known)
        self._types = dict(_messages(self._pool.FindFileByName("").message_types_by_name.values()))

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
        path, start = _indexes(data)
        if path not in self._types:
            raise InvalidRecord("invalid_protobuf", f"its schema has no message {list(path)}")
        message = GetMessageClass(self._types[path])()
        try:
            message.ParseFromString(data[start:])
            self._check_size(message)
            return json_format.MessageToDict(
                message,
                always_print_fields_with_no_presence=True,
                preserving_proto_field_name=True,
                descriptor_pool=self._pool,
            )
        except InvalidRecord:
            raise
        except UNREADABLE as error:  # the error's text quotes the bytes
            raise InvalidRecord("invalid_protobuf", f"not of its schema: {type(error).__name__}") from None

    def _check_size(self, message: Message) -> None:
        """Check how many values a message has in a dict. Even a message of two bytes may have many fields, all of which
        are shown.

        Raises: InvalidRecord.
        """
        count = 0
        waiting: list[Any] = [message]
        while waiting and count <= MAX_VALUES:
            value = waiting.pop()
            if isinstance(value, str | bytes | int | float):
                continue
            if not isinstance(value, Message):
                count += len(value)
                if count <= MAX_VALUES:
                    waiting += value.values() if isinstance(value, Mapping) else value
            elif value.DESCRIPTOR.full_name == "google.protobuf.Any" and value.type_url:
                count += len(value.value) // BYTES_PER_VALUE
                waiting.append(self._unpacked(value))
            else:
                count += len(value.DESCRIPTOR.fields)
                waiting += [inner for _, inner in value.ListFields()]
        if count > MAX_VALUES:
            raise InvalidRecord("too_large", f"more than {MAX_VALUES} values")

    def _unpacked(self, value: Any) -> Message:
        try:
            found = self._pool.FindMessageTypeByName(value.type_url.rpartition("/")[2])
        except KeyError:
            raise InvalidRecord("invalid_protobuf", "an Any has a type that its schema does not import") from None
        return GetMessageClass(found).FromString(value.value)


def _file(name: str, text: str) -> FileDescriptorProto:
    try:
        file = FileDescriptorProto.FromString(binascii.a2b_base64(text, strict_mode=True))
    except (ValueError, DecodeError):
        problem = "the registry does not serialize Protobuf schemas, as ?format=serialized asks it to"
        raise ConfigurationError(setting=variable(("registry", "url")), problem=problem) from None
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


def _messages(types: Iterable[Descriptor], path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Descriptor]]:
    """Return types by their indexes. Entries of maps do not count, as in Confluent's serializer."""
    for index, one in enumerate(one for one in types if not one.GetOptions().map_entry):
        yield (*path, index), one
        yield from _messages(one.nested_types, (*path, index))


def _indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes, and where the message begins. Raises: InvalidRecord."""
    count, start = _integer(data, 0)
    if not 0 <= count <= MAX_SCHEMA_DEPTH:
        raise InvalidRecord("invalid_framing", f"{count} message indexes")
    path = []
    for _ in range(count):
        index, start = _integer(data, start)
        path.append(index)
    return tuple(path) or (0,), start


def _integer(data: bytes, start: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[start : start + VARINT_BYTES]):
        value |= (byte & 127) << 7 * place
        start += 1
        if byte < 128:
            return (value >> 1) ^ -(value & 1), start
    raise InvalidRecord("invalid_framing", "its message indexes are cut off or too long")
