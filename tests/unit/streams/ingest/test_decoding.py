"""Decoding foreign records from anyone."""

import asyncio
import threading
import time
from typing import Any

import httpx
import pytest

from afterword.schemas import InvalidRecord
from afterword.streams.ingest.formats import Read, read_json
from afterword.streams.ingest.registry import SchemaRegistry
from afterword.streams.ingest.sources import Format


class Schemas(SchemaRegistry):
    """A registry that has one schema, number 258, whose records are texts."""

    async def reader(self, form: Format, number: int | str, kind: str = "ids") -> Read:
        assert form in ("avro", "protobuf")
        assert number == 258
        return bytes.decode


SCHEMAS = Schemas(httpx.AsyncClient())


def test_deep_or_damaged_json_is_invalid() -> None:
    for data in (b"[" * 1_000_000, b'{"a":' * 100_000, b"{", b"", b"\xff\xfe"):
        with pytest.raises(InvalidRecord, match=r"invalid_json|too_large"):
            read_json(data)
    assert read_json(b'{"a": "\\ud83d"}') == {"a": "\ufffd"}


@pytest.mark.parametrize("form", ["avro", "protobuf"])
async def test_schema_id_precedes_the_value(form: Format) -> None:
    assert await SCHEMAS.decode(form, b"\0\0\0\x01\x02hi") == "hi"


@pytest.mark.parametrize("form", ["avro", "json-schema", "protobuf"])
async def test_value_without_schema_id_is_invalid(form: Format) -> None:
    assert await SCHEMAS.decode(form, None) is None
    for data in (b"", b"\0\0", b'{"a": 1}'):
        with pytest.raises(InvalidRecord, match="invalid_framing"):
            await SCHEMAS.decode(form, data)


async def test_json_is_read_without_a_schema() -> None:
    expected: Any = {"a": 1}
    assert await SCHEMAS.decode("json-schema", b'\0\0\0\x01\x02{"a": 1}') == expected
    assert await SCHEMAS.decode("json", b'{"a": 1}') == expected
    assert await SCHEMAS.decode("json", None) is None


def test_record_of_too_many_values_is_refused_unread() -> None:
    for value in (b"[]", b"{}", b"1"):
        with pytest.raises(InvalidRecord, match="too_large"):
            read_json(b"[" + (value + b",") * 200_000 + b"1]")


async def test_event_loop_continues_while_a_large_record_is_read() -> None:
    loop_went_on = threading.Event()

    def read(data: bytes) -> bool:
        return loop_went_on.wait(10)

    class Slow(SchemaRegistry):
        async def reader(self, form: Format, number: int | str, kind: str = "ids") -> Read:
            asyncio.get_running_loop().call_soon(loop_went_on.set)
            return read

    assert await Slow(httpx.AsyncClient()).decode("avro", b"\0\0\0\x01\x02" + bytes(100_000))


def test_record_of_two_megabytes_is_read_in_time() -> None:
    began = time.thread_time()
    assert len(read_json(b"[" + b'"hello world",' * 150_000 + b"1]")) == 150_001
    assert time.thread_time() - began < 10
