"""Lines of JSON: how they are read, checked and turned into records."""

import asyncio
import json
import os
import re
import tempfile
from contextlib import suppress
from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword import samples
from afterword.schemas import ConversationFlush, MessageCreated, decode_input
from afterword.schemas.records import ProducerRecord
from afterword.writing import produce
from afterword.writing.produce import InvalidLine, LinesInvalid, check_lines, is_regular, parse_numbered, read_lines

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MESSAGE = {"id": "1", "conversation_id": "c", "user_id": "u", "role": "user", "content": "secret words"}


def line(**changes: object) -> bytes:
    return orjson.dumps(MESSAGE | changes)


def one(data: bytes) -> ProducerRecord:
    found = parse_numbered(1, data, NOW)
    assert isinstance(found, ProducerRecord)
    return found


def taken(record: ProducerRecord) -> MessageCreated | ConversationFlush:
    """Decode a record like a worker."""
    return decode_input(record.conversation_id.encode(), record.value, record.headers, 0)


def test_message_is_sent_byte_for_byte():
    data = line(from_the_future={"a": 1})
    assert one(b"  " + data + b" \r").value == data


def test_message_is_accepted_and_named_by_its_event_id():
    record = one(line(sent_at="2025-05-05T10:00:00+02:00"))
    assert taken(record).id == "1"
    assert dict(record.headers)["ce_id"] == b"c:1"
    assert dict(record.headers)["ce_time"] == b"2025-05-05T08:00:00.000Z"


def test_flush_line_becomes_a_flush():
    assert isinstance(taken(one(b'{"type":"conversation.flush","conversation_id":"c"}')), ConversationFlush)


def test_byte_order_mark_before_the_first_line_is_skipped():
    assert one(b"\xef\xbb\xbf" + line()).value == line()


def test_invalid_lines_are_named_by_number():
    with pytest.raises(LinesInvalid) as raised:
        check_lines([line(), b"", b"not json", b"[]", line(role="boss"), line(), b"{}"])
    assert raised.value.found == 4
    assert re.findall(r"line \d+: \w+", str(raised.value)) == [
        "line 3: invalid_json", "line 4: schema_violation", "line 5: schema_violation",
    ]  # fmt: skip
    assert check_lines([line(), b"", line()]).messages == 2


@pytest.mark.parametrize("data", [line(role="boss"), line(sentiment=7), line()[:-1], line(id="")])
def test_invalid_line_is_described_without_its_content(data):
    with pytest.raises(InvalidLine) as raised:
        parse_numbered(1, data, NOW)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_other_encoding_is_named(encoding):
    data = json.dumps(MESSAGE | {"content": "größe"}, ensure_ascii=False).encode(encoding)
    with pytest.raises(InvalidLine, match="not UTF-8 at byte"):
        parse_numbered(1, data, NOW)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_line_is_accepted_or_refused(data):
    with suppress(InvalidLine):
        parse_numbered(1, data, NOW)


@given(st.dictionaries(st.sampled_from([*MESSAGE, "type", "sent_at"]), st.none() | st.text() | st.integers()))
def test_any_object_is_accepted_or_refused(changes):
    with suppress(InvalidLine):
        assert taken(one(json.dumps(MESSAGE | changes).encode()))


def test_samples_are_twelve_valid_conversations():
    found = check_lines(samples.sample_lines())
    assert len(found.conversation_ids) == 12


async def lines_of_a_pipe(data: bytes, chunk_bytes: int = 65536) -> list[bytes]:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as file:
        async with asyncio.TaskGroup() as group:

            def write() -> None:
                with os.fdopen(writing, "wb", buffering=0) as pipe:
                    for start in range(0, len(data), chunk_bytes):
                        pipe.write(data[start : start + chunk_bytes])

            group.create_task(asyncio.to_thread(write))
            return [line.removesuffix(b"\n") async for line in read_lines(file)]


async def lines_of_a_file(data: bytes) -> list[bytes]:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        assert is_regular(file)
        return [line.removesuffix(b"\n") async for line in read_lines(file)]


@given(data=st.text("ab\n", max_size=60).map(str.encode), chunk_bytes=st.integers(1, 7))
async def test_lines_do_not_depend_on_chunk_boundaries(data, chunk_bytes):
    expected = data.removesuffix(b"\n").split(b"\n") if data else []
    assert await lines_of_a_pipe(data, chunk_bytes) == await lines_of_a_file(data) == expected


async def test_overlong_line_is_held_no_further_than_its_limit(monkeypatch):
    monkeypatch.setattr(produce, "MOST_LINE_BYTES", 1000)
    data = b"a\n" + b"x" * 100_000 + b"\nb\n" + b"y" * 100_000
    found = await lines_of_a_file(data)
    assert [len(line) for line in found] == [1, 1001, 1, 1001]
    with pytest.raises(InvalidLine, match="line 2: too_large"):
        parse_numbered(2, found[1], NOW)


async def test_pipe_is_read_up_to_an_overlong_line(monkeypatch):
    monkeypatch.setattr(produce, "MOST_LINE_BYTES", 1000)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as file, os.fdopen(writing, "wb", buffering=0) as pipe:
        lines = read_lines(file)
        pipe.write(b"a\n" + b"x" * 10_000)
        assert await anext(lines) == b"a\n"
        with pytest.raises(InvalidLine, match="line 2: too_large"):
            await anext(lines)


async def test_piped_line_is_handed_on_before_the_next():
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as file, os.fdopen(writing, "wb", buffering=0) as pipe:
        assert not is_regular(file)
        lines = read_lines(file)
        pipe.write(b"first\nsec")
        assert await anext(lines) == b"first\n"
        pipe.write(b"ond\n")
        assert await anext(lines) == b"second\n"
        pipe.close()
        assert [line async for line in lines] == []
