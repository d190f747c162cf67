"""Decoding foreign records from anyone."""

import asyncio
import io
import time
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import InvalidRecord
from afterword.streams.ingest.decoding import AvroSchema, SchemaRefused, decoder, read_json

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


async def never(number: int) -> AvroSchema:
    raise AssertionError(f"schema {number} is not needed")


def test_avro_is_read_with_logical_types_as_what_they_are_made_of() -> None:
    plain = {**MESSAGE, "fields": [dict(field) for field in MESSAGE["fields"]]}  # type: ignore[call-overload]
    plain["fields"][3]["type"], plain["fields"][4]["type"] = "long", "bytes"
    assert AvroSchema(MESSAGE).read(written(plain, VALUE)) == VALUE


def test_a_schema_may_name_types_of_others() -> None:
    part = {"type": "record", "name": "Part", "fields": [{"name": "text", "type": "string"}]}
    whole = {"type": "record", "name": "Whole", "fields": [{"name": "part", "type": "Part"}]}
    data = written(part, {"text": "hello"})
    assert AvroSchema(whole, [part]).read(data) == {"part": {"text": "hello"}}
    with pytest.raises(SchemaRefused):
        AvroSchema(whole)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_value_or_an_invalid_record(data: bytes) -> None:
    schema = AvroSchema(MESSAGE)
    try:
        value = schema.read(data)
    except InvalidRecord:
        return
    assert value.keys() == VALUE.keys()


@pytest.mark.parametrize("cut", range(12))
def test_a_value_that_is_cut_off_or_goes_on_is_invalid(cut: int) -> None:
    simple = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}, {"name": "b", "type": "long"}]}
    data = written(simple, {"a": "0123456789", "b": 300})
    for damaged in (data[:cut], data + b"\0" * (cut + 1)):
        with pytest.raises(InvalidRecord):
            AvroSchema(simple).read(damaged)


ITSELF = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
EMPTY = {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}


@pytest.mark.parametrize(
    "schema",
    [
        ITSELF,
        {"type": "array", "items": "null"},
        {"type": "array", "items": EMPTY},
        [],
        5,
        None,
        "Unknown",
        {"type": 3},
    ],
)
def test_a_schema_without_bounds_or_without_sense_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaRefused):
        AvroSchema(schema)


def test_a_schema_that_is_nested_deeply_is_refused() -> None:
    schema: Any = "string"
    for _ in range(500):
        schema = {"type": "array", "items": schema}
    with pytest.raises(SchemaRefused):
        AvroSchema(schema)


def test_few_bytes_that_would_become_very_many_values_are_refused_at_once() -> None:
    doubled = [EMPTY]
    name = "E"
    for number in range(60):  # each has the one before twice
        fields = [{"name": "a", "type": name}, {"name": "b", "type": name}]
        name = f"D{number}"
        doubled.append({"type": "record", "name": name, "fields": fields})
    began = time.monotonic()
    with pytest.raises(InvalidRecord, match="too_large"):
        AvroSchema(name, doubled).read(b"")
    wide = {
        "type": "record",
        "name": "W",
        "fields": [{"name": f"n{n}", "type": EMPTY if not n else "E"} for n in range(99)],
    }
    flagged = {"type": "record", "name": "F", "fields": [{"name": "b", "type": "boolean"}, {"name": "w", "type": wide}]}
    many = {"type": "array", "items": flagged}
    data = written(many, [{"b": True, "w": {f"n{n}": {"n": None} for n in range(99)}}] * 100)
    assert len(AvroSchema(many).read(data)) == 100
    with pytest.raises(InvalidRecord, match="too_large"):
        AvroSchema(many).read(b"\x02" * 2**20)
    assert time.monotonic() - began < 5


async def test_json_that_is_deep_or_damaged_is_invalid_and_half_a_character_is_mended() -> None:
    for data in (b"[" * 1_000_000, b'{"a":' * 100_000, b"{", b"", b"\xff\xfe"):
        with pytest.raises(InvalidRecord, match="invalid_json"):
            await read_json(data)
    assert await read_json(b'{"a": "\\ud83d"}') == {"a": "\ufffd"}
    assert await read_json(None) is None


async def test_the_schemas_id_is_in_front_of_what_a_registry_knows() -> None:
    async def schema_of(number: int) -> AvroSchema:
        assert number == 258
        return AvroSchema("string")

    prefix = b"\0\0\0\x01\x02"
    assert await decoder("avro", schema_of)(prefix + b"\x04hi") == "hi"
    assert await decoder("json-schema", never)(prefix + b'{"a": 1}') == {"a": 1}
    for form in ("avro", "json-schema"):
        assert await decoder(form, never)(None) is None  # type: ignore[arg-type]
        for data in (b"", b"\0\0", b'{"a": 1}'):
            with pytest.raises(InvalidRecord, match="invalid_framing"):
                await decoder(form, never)(data)  # type: ignore[arg-type]


def test_a_record_of_two_megabytes_is_read_in_time() -> None:
    texts = {"type": "array", "items": "string"}
    data = written(texts, ["hello world"] * 80_000)
    began = time.monotonic()
    assert len(AvroSchema(texts).read(data)) == 80_000
    assert len(asyncio.run(read_json(b"[" + b'"hello world",' * 150_000 + b"1]"))) == 150_001
    assert time.monotonic() - began < 5
