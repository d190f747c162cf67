"""Decoding Avro from anyone."""

import io
import json
import time
from collections.abc import Sequence
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import InvalidRecord
from afterword.streams.ingest.formats import AvroSchema, SchemaRefused
from tests.rows import with_rows

MESSAGE = {
    "type": "record",
    "name": "Message",
    "namespace": "com.example",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "tenant", "type": ["null", "string"], "default": None},
        {"name": "role", "type": {"type": "enum", "name": "Role", "symbols": ["IN", "OUT"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {
            "name": "parts",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Part",
                    "fields": [{"name": "text", "type": "string"}, {"name": "next", "type": ["null", "Role"]}],
                },
            },
        },
    ],
}
VALUE = {
    "id": "m1",
    "tenant": None,
    "role": "IN",
    "at": 1_790_000_000_000,
    "price": b"\x01",
    "tags": {"a": "b"},
    "parts": [{"text": "hello", "next": "OUT"}],
}


def written(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def avro(schema: Any, references: Sequence[Any] = ()) -> AvroSchema:
    return AvroSchema(json.dumps(schema), {str(number): json.dumps(one) for number, one in enumerate(references)})


def test_avro_logical_types_become_their_base_values() -> None:
    plain = {**MESSAGE, "fields": [dict(field) for field in MESSAGE["fields"]]}  # type: ignore[call-overload]
    plain["fields"][3]["type"], plain["fields"][4]["type"] = "long", "bytes"
    assert avro(MESSAGE).read(written(plain, VALUE)) == VALUE


def test_schema_may_refer_to_other_schemas() -> None:
    part = {"type": "record", "name": "Part", "fields": [{"name": "text", "type": "string"}]}
    whole = {"type": "record", "name": "Whole", "fields": [{"name": "part", "type": "Part"}]}
    data = written(part, {"text": "hello"})
    assert avro(whole, [part]).read(data) == {"part": {"text": "hello"}}
    with pytest.raises(SchemaRefused):
        avro(whole)


@given(data=st.binary(max_size=200))
def test_any_bytes_give_a_value_or_an_error(data: bytes) -> None:
    schema = avro(MESSAGE)
    try:
        value = schema.read(data)
    except InvalidRecord:
        return
    assert value.keys() == VALUE.keys()


@pytest.mark.parametrize("cut", range(12))
def test_truncated_or_overlong_value_is_invalid(cut: int) -> None:
    simple = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}, {"name": "b", "type": "long"}]}
    data = written(simple, {"a": "0123456789", "b": 300})
    for damaged in (data[:cut], data + b"\0" * (cut + 1)):
        with pytest.raises(InvalidRecord):
            avro(simple).read(damaged)


@with_rows
def test_unbounded_or_senseless_schema_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaRefused):
        avro(schema)


def test_union_member_may_have_no_fields() -> None:
    ended = {"type": "record", "name": "Ended", "fields": []}
    schema = {"type": "record", "name": "Event", "fields": [{"name": "what", "type": [ended, "string"]}]}
    assert avro(schema).read(written(schema, {"what": {}})) == {"what": {}}


def test_deeply_nested_schema_is_refused() -> None:
    schema: Any = "string"
    for _ in range(500):
        schema = {"type": "array", "items": schema}
    with pytest.raises(SchemaRefused):
        avro(schema)


def test_small_input_with_very_many_values_is_refused() -> None:
    flag = {"type": "record", "name": "E", "fields": [{"name": "on", "type": "boolean"}]}
    doubled: list[Any] = [flag]
    name = "E"
    for number in range(60):  # each has the one before twice
        fields = [{"name": "a", "type": name}, {"name": "b", "type": name}]
        name = f"D{number}"
        doubled.append({"type": "record", "name": name, "fields": fields})
    began = time.thread_time()
    with pytest.raises(InvalidRecord, match="too_large"):
        avro(name, doubled).read(bytes(2**20))
    nested: Any = "boolean"
    for number in range(9):
        nested = {"type": "record", "name": f"N{number}", "fields": [{"name": "inner", "type": nested}]}
    with pytest.raises(InvalidRecord, match="too_large"):
        avro({"type": "array", "items": nested}).read(b"\x02" * 2**20)
    assert time.thread_time() - began < 20


def test_avro_record_of_two_megabytes_is_read_in_time() -> None:
    texts = {"type": "array", "items": "string"}
    data = written(texts, ["hello world"] * 80_000)
    began = time.thread_time()
    assert len(avro(texts).read(data)) == 80_000
    assert time.thread_time() - began < 20
