"""A record becomes a model, or an error that says what is wrong without repeating the content."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import (
    ConversationFlush,
    EpisodeAmended,
    EpisodeMessage,
    EpisodeRedo,
    InvalidRecord,
    MessageCreated,
    decode_closed,
    decode_input,
    fingerprint,
)
from afterword.schemas.records import REPLACED, Replacement, cloud_event
from tests.rows import with_rows

MESSAGE = {"id": "m1", "conversation_id": "c1", "user_id": "u1", "role": "user", "content": "hello"}
KEY = b"c1"
SECRET = "do-not-repeat-this"


def encoded(**changes: Any) -> bytes:
    return orjson.dumps({**MESSAGE, **changes})


def refused(value: bytes | None, key: bytes | None = KEY, headers: Any = (), timestamp: int = 0) -> InvalidRecord:
    with pytest.raises(InvalidRecord) as caught:
        decode_input(key, value, headers, timestamp)
    return caught.value


def test_message_without_time_takes_its_records() -> None:
    message = decode_input(KEY, encoded(), [], 1_700_000_000_123)
    assert isinstance(message, MessageCreated)
    assert message.sent_at == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)


def test_times_are_stored_in_utc_milliseconds() -> None:
    message = decode_input(KEY, encoded(sent_at="2026-01-02T03:04:05.678912+02:00"), [], 0)
    assert isinstance(message, MessageCreated)
    assert message.sent_at == datetime(2026, 1, 2, 1, 4, 5, 678_000, tzinfo=UTC)


def test_type_comes_from_header_then_field_then_default() -> None:
    flush = orjson.dumps({"type": "conversation.flush", "conversation_id": "c1"})
    assert isinstance(decode_input(KEY, flush, [], 0), ConversationFlush)
    assert isinstance(decode_input(KEY, flush, [("ce_type", b"conversation.flush")], 0), ConversationFlush)
    assert isinstance(decode_input(KEY, encoded(type="other"), [("ce_type", b"message.created")], 0), MessageCreated)
    assert isinstance(decode_input(KEY, encoded(content='a "type" of words'), [], 0), MessageCreated)


def test_structured_cloud_event_carries_its_message_in_data() -> None:
    event = orjson.dumps({"specversion": "1.0", "type": "message.created", "id": "1", "source": "s", "data": MESSAGE})
    headers = [("content-type", b"application/cloudevents+json; charset=utf-8")]
    assert decode_input(KEY, event, headers, 5) == decode_input(KEY, encoded(), [], 5)


def test_unknown_fields_are_ignored() -> None:
    assert decode_input(KEY, encoded(mood="new"), [], 5) == decode_input(KEY, encoded(), [], 5)


@with_rows
def test_invalid_record_is_named(value: bytes | None, error_type: str) -> None:
    assert refused(value).error_type == error_type


@with_rows
def test_lone_surrogate_is_replaced_and_byte_order_mark_dropped(written: bytes, content: str) -> None:
    for mark in (b"", b"\xef\xbb\xbf"):
        value = mark + encoded(content="@").replace(b"@", written)
        event = decode_input(b"c1", value, (), 0)
        assert isinstance(event, MessageCreated)
        assert event.content == content


def test_key_must_be_the_conversation() -> None:
    assert refused(encoded(), key=None).error_type == "missing_key"
    assert refused(encoded(), key=b"c2").error_type == "key_mismatch"
    assert refused(encoded(), key=b"\xff").error_type == "key_mismatch"


@pytest.mark.parametrize("timestamp", [2**63 - 1, -(2**63)])
def test_impossible_record_timestamp_is_refused_when_needed(timestamp: int) -> None:
    assert refused(encoded(), timestamp=timestamp).error_type == "schema_violation"
    assert decode_input(KEY, encoded(sent_at="2026-01-01T00:00:00Z"), [], timestamp)


def test_error_names_fields_and_never_contents() -> None:
    for changes in ({"role": SECRET}, {"sentiment": SECRET}, {"sent_at": SECRET}, {"metadata": {SECRET: 2**63}}):
        assert SECRET not in str(refused(encoded(**changes)))


NESTED = b"[" * 1020 + b"]" * 1020
"""Deepest nesting that orjson reads, deeper than Python's own functions go."""


def test_structured_event_of_nested_type_is_unknown() -> None:
    event = b'{"type":' + NESTED + b',"data":{}}'
    assert refused(event, headers=[("content-type", b"application/cloudevents+json")]).error_type == "unknown_type"


@given(st.binary(max_size=200), st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=30))))
def test_any_bytes_give_a_model_or_the_one_error(value: bytes, headers: Any) -> None:
    with suppress(InvalidRecord):
        assert decode_input(KEY, value, headers, 0).conversation_id == KEY.decode()


def test_headers_we_write_are_cloud_events() -> None:
    headers = dict(cloud_event("summary.created", "c1:1:1", "afterword/test", datetime(2026, 1, 1, tzinfo=UTC)))
    assert headers == {
        "ce_specversion": b"1.0",
        "ce_id": b"c1:1:1",
        "ce_type": b"summary.created",
        "ce_source": b"afterword/test",
        "ce_time": b"2026-01-01T00:00:00.000Z",
        "content-type": b"application/json",
    }


def test_id_in_a_header_stays_one_header() -> None:
    headers = cloud_event(
        "summary.created", "c1\r\nce_type: forged\0:1:1", "afterword/test", datetime(2026, 1, 1, tzinfo=UTC)
    )
    assert [name for name, _ in headers].count("ce_type") == 1
    assert dict(headers)["ce_id"] == b"c1\r\nce_type: forged\0:1:1"


def test_fingerprint_covers_ordered_ids_and_contents_only() -> None:
    def message(name: str, content: str, **more: Any) -> EpisodeMessage:
        now = datetime(2026, 1, 1, tzinfo=UTC)
        return EpisodeMessage(id=name, role="user", content=content, sent_at=now, user_id="u", **more)

    a, b = message("1", "hé"), message("2", "")
    # sha256 of [["1","hé"],["2",""]] in UTF-8
    assert fingerprint([a, b]) == "10e3cdec0f82ebcc3bdd9d576c3450045b8f237c7dd3a03d38389d97ceb43324"
    assert fingerprint([a, b]) != fingerprint([b, a])
    assert fingerprint([message("1", "x", tools=("t",))]) == fingerprint([message("1", "x")])


AMENDED = {"conversation_id": "c1", "change": "edited", "partition": 0, "offset": 7}
REDO = {"conversation_id": "c1", "episode_id": "c1:1", "revision": 1}
WRITTEN = [
    ("episode.amended", EpisodeAmended, AMENDED | {"amended_at": "2026-03-01T09:41:00Z"}),
    ("episode.redo", EpisodeRedo, REDO | {"requested_at": "2026-03-01T09:41:00Z"}),
]


@pytest.mark.parametrize(("event_type", "model", "fields"), WRITTEN)
def test_closed_episode_record_is_what_its_type_says(event_type: str, model: type, fields: dict[str, Any]) -> None:
    headers = cloud_event(event_type, "id", "test", datetime(2026, 3, 1, tzinfo=UTC))
    assert type(decode_closed(KEY, orjson.dumps(fields), headers)) is model
    with pytest.raises(InvalidRecord, match="key_mismatch"):
        decode_closed(b"c2", orjson.dumps(fields), headers)
    with pytest.raises(InvalidRecord, match="schema_violation"):
        decode_closed(KEY, orjson.dumps(fields), ())


def test_replacement_record_is_refused_with_its_originals_error() -> None:
    headers = (Replacement("too_large", "3000000 bytes"),)
    message = refused(encoded()[:5], headers=headers)
    with pytest.raises(InvalidRecord) as episode:
        decode_closed(KEY, b"", headers)
    assert message.error_type == episode.value.error_type == "too_large"
    assert message.detail == episode.value.detail == "3000000 bytes"


def test_producer_cannot_forge_a_replacement() -> None:
    assert decode_input(KEY, encoded(), [(REPLACED, b"3000000 bytes")], 0).conversation_id == KEY.decode()
