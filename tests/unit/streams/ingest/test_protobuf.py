"""Decoding Protobuf from anyone."""

import time
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import InvalidRecord
from afterword.streams.ingest.formats import ProtobufSchema, SchemaRefused
from tests.protobuf_schemas import CHAT, chat_message, descriptor, message
from tests.schema_registry import serialized

COMMON = descriptor("""
    name: "chat/common.proto" package: "acme" syntax: "proto3"
    enum_type { name: "Role" value { name: "USER" number: 0 } value { name: "BOT" number: 1 } }
    message_type {
      name: "Part" field { name: "text" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
      field { name: "parts" number: 2 type: TYPE_MESSAGE type_name: ".acme.Part" label: LABEL_REPEATED }
    }
""")
EVERYTHING = descriptor("""
    package: "acme" syntax: "proto3" dependency: "chat/common.proto" dependency: "confluent/meta.proto"
    dependency: "google/protobuf/any.proto" dependency: "google/protobuf/struct.proto"
    dependency: "google/protobuf/timestamp.proto" dependency: "google/protobuf/wrappers.proto"
    message_type { name: "Typing" field { name: "user" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL } }
    message_type {
      name: "Chat"
      field { name: "tags" number: 1 type: TYPE_MESSAGE type_name: ".acme.Chat.TagsEntry" label: LABEL_REPEATED }
      field { name: "said" number: 2 type: TYPE_MESSAGE type_name: ".acme.Chat.Said" label: LABEL_OPTIONAL }
      nested_type {
        name: "TagsEntry" options { map_entry: true }
        field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
        field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".acme.Part" label: LABEL_OPTIONAL }
      }
      nested_type {
        name: "Said"
        field { name: "ownRole" number: 1 type: TYPE_ENUM type_name: ".acme.Role" label: LABEL_OPTIONAL }
        field { name: "seq" number: 2 type: TYPE_UINT64 label: LABEL_OPTIONAL }
        field { name: "is_bot" number: 3 type: TYPE_BOOL label: LABEL_OPTIONAL }
        field { name: "raw" number: 4 type: TYPE_BYTES label: LABEL_OPTIONAL }
        field { name: "parts" number: 5 type: TYPE_MESSAGE type_name: ".acme.Part" label: LABEL_REPEATED }
        field { name: "at" number: 6 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
        field { name: "about" number: 7 type: TYPE_MESSAGE type_name: ".google.protobuf.Struct" label: LABEL_OPTIONAL }
        field {
          name: "note" number: 8 type: TYPE_MESSAGE type_name: ".google.protobuf.StringValue" label: LABEL_OPTIONAL
        }
        field { name: "any" number: 9 type: TYPE_MESSAGE type_name: ".google.protobuf.Any" label: LABEL_OPTIONAL }
        field {
          name: "tenant" number: 10 type: TYPE_STRING label: LABEL_OPTIONAL proto3_optional: true oneof_index: 0
        }
        field { name: "sizes" number: 11 type: TYPE_INT32 label: LABEL_REPEATED }
        oneof_decl { name: "_tenant" }
      }
    }
""")
SAID = b"\x04\x02\x00"
"""The indexes of Chat.Said: two of them, 1 and 0. The entry of a map before it does not count."""
FILES = [COMMON, FileDescriptorProto(name="confluent/meta.proto"), EVERYTHING]


def schema() -> ProtobufSchema:
    return ProtobufSchema(serialized(EVERYTHING), {"chat/common.proto": serialized(COMMON)})


def said(**fields: Any) -> bytes:
    return SAID + message(FILES, "acme.Chat.Said", **fields)


def test_values_follow_the_json_mapping_of_protobuf() -> None:
    at = "2026-09-21T14:13:20Z"
    value = schema().read(
        said(
            seq=2**63,
            raw="/w==",
            parts=[{"text": "hello", "parts": [{}]}],
            at=at,
            about={"score": 0.5, "of": [None, True]},
            note="",
            any={"@type": "type.googleapis.com/google.protobuf.Timestamp", "value": at},
        )
    )
    assert value == {
        "ownRole": "USER",
        "seq": "9223372036854775808",
        "is_bot": False,
        "raw": "/w==",
        "parts": [{"text": "hello", "parts": [{"text": "", "parts": []}]}],
        "at": at,
        "about": {"score": 0.5, "of": [None, True]},
        "note": "",
        "any": {"@type": "type.googleapis.com/google.protobuf.Timestamp", "value": at},
        "sizes": [],
    }


def test_field_with_presence_is_missing_until_set() -> None:
    assert "tenant" not in schema().read(said())
    assert schema().read(said(tenant=""))["tenant"] == ""


def test_indexes_name_the_message_of_the_file() -> None:
    typing = message(FILES, "acme.Typing", user="dana")
    assert schema().read(b"\0" + typing) == schema().read(b"\x02\x00" + typing) == {"user": "dana"}
    assert schema().read(b"\x02\x02") == {"tags": {}}
    unknown = (b"\x02\x04", b"\x04\x02\x02", b"\x02\x01", b"\x02\xfe\xff\xff\xff\x0f")
    for framing in (*unknown, b"", b"\x04\x02", b"\x01\x00", b"\xff" * 20, b"\xfe\xff\x07" + b"\0" * 200_000):
        with pytest.raises(InvalidRecord, match="invalid_framing: it does not begin with the indexes or name"):
            schema().read(framing + typing)


def test_schema_without_package_or_in_proto2_is_read() -> None:
    old = descriptor("""
        syntax: "proto2"
        message_type {
          name: "M"
          field { name: "id" number: 1 type: TYPE_STRING label: LABEL_REQUIRED }
          field { name: "role" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL default_value: "user" }
        }
    """)
    read = ProtobufSchema(serialized(old), {}).read
    assert read(b"\0" + message([old], "M", id="m1")) == {"id": "m1"}
    assert read(b"\0") == {}


@pytest.mark.parametrize(
    "imports",
    [
        {},
        {"chat/common.proto": COMMON, "again.proto": COMMON},
        {"chat/common.proto": EVERYTHING},
    ],
)
def test_inconsistent_schema_files_are_refused_by_name(
    imports: dict[str, FileDescriptorProto],
) -> None:
    with pytest.raises(SchemaRefused, match=r"acme\.(Part|Role|Chat)|common.proto"):
        ProtobufSchema(serialized(EVERYTHING), {name: serialized(file) for name, file in imports.items()})


@pytest.mark.parametrize("text", ['syntax = "proto3"; message M {}', "////", "Zm9v", "\ufffd"])
def test_registry_that_does_not_serialize_is_named(text: str) -> None:
    with pytest.raises(SchemaRefused, match=r"has its \.proto text only"):
        ProtobufSchema(text, {})


def test_type_may_be_named_instead_of_its_indexes() -> None:
    typing = message(FILES, "acme.Typing", user="dana")
    for name in (b"Typing", b"acme.Typing"):
        assert schema().read(bytes([len(name) + 2, 10, len(name)]) + name + typing) == {"user": "dana"}
    assert schema().read(b"\x06\n\x04Said")["ownRole"] == "USER"
    for damaged in (b"\x0d\n\x0bAbsentThing", b"\x08\n\x07Typing", b"\x08\n"):
        with pytest.raises(InvalidRecord, match=r"invalid_framing|invalid_protobuf"):
            schema().read(damaged)


READ = schema().read
VALID = said(seq=5, parts=[{"text": "hello"}], at="2026-09-21T14:13:20Z", sizes=[1, 2, 300])


def is_read_or_refused(data: bytes) -> bool:
    try:
        return isinstance(READ(data), dict)
    except InvalidRecord as error:
        return bool(error.detail)


@given(data=st.binary(max_size=200), prefix=st.sampled_from([b"", b"\0", SAID]))
def test_any_bytes_give_a_protobuf_value_or_an_error(data: bytes, prefix: bytes) -> None:
    assert is_read_or_refused(prefix + data)


@given(cut=st.integers(0, len(VALID) - 1), flipped=st.integers(0, len(VALID) - 1), bit=st.integers(0, 7))
def test_damaged_value_gives_a_value_or_an_error(cut: int, flipped: int, bit: int) -> None:
    damaged = bytearray(VALID)
    damaged[flipped] ^= 1 << bit
    assert all(is_read_or_refused(data) for data in (VALID[:cut], bytes(damaged), bytes(damaged[:cut])))


def test_hostile_values_are_refused_in_time() -> None:
    deep = b""
    for _ in range(5000):
        deep = b"\x12" + _varint(len(deep)) + deep
    any_in_any = b""
    for _ in range(2000):
        name = b"x/google.protobuf.Any"
        any_in_any = b"\x0a" + _varint(len(name)) + name + b"\x12" + _varint(len(any_in_any)) + any_in_any
    hostile = {
        "deep": SAID + b"\x2a" + _varint(len(deep)) + deep,
        "wide": SAID + b"\x2a\0" * 500_000,
        "any": SAID + b"\x4a" + _varint(len(any_in_any)) + any_in_any,
        "any of another": SAID + b"\x4a\x05\x0a\x03x/y",
        "time": SAID + b"\x32\x0a\x08" + b"\xff" * 8 + b"\x7f",
    }
    problems = {}
    began = time.thread_time()
    for name, data in hostile.items():
        with pytest.raises(InvalidRecord) as caught:
            READ(data)
        problems[name] = caught.value.error_type
    assert problems == {**dict.fromkeys(hostile, "invalid_protobuf"), "wide": "too_large"}
    assert len(READ(said(sizes=[1] * 150_000))["sizes"]) == 150_000
    assert time.thread_time() - began < 30


def _varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


def test_documented_chat_schema_is_read() -> None:
    read = ProtobufSchema(serialized(CHAT), {}).read
    assert read(chat_message("m1", "s1", 7, "INBOUND", "hi", 1_790_000_000_250)) == {
        "message_id": "m1",
        "session_id": "s1",
        "user_id": "7",
        "direction": "INBOUND",
        "body": "hi",
        "sent_at": "2026-09-21T14:13:20.250Z",
    }
