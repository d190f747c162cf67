"""A dead letter holds its original, and says where, when and why it failed."""

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from afterword.schemas.dead_letters import (
    DEAD_LETTER_PREFIX,
    MAX_BYTES,
    MAX_MESSAGE_CHARACTERS,
    Origin,
    dead_letter,
    read_dead_letter,
)
from afterword.schemas.records import REPLACED, Headers, Replacement

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


@dataclass
class Record:
    topic: str = "messages"
    partition: int = 3
    offset: int = 42
    timestamp: int = NOON_MS
    key: bytes | None = b"c1"
    value: bytes | None = b"{"
    headers: Headers = field(default_factory=list)


def dead_letter_of(original: Record, minutes: int = 0, message: str = "not JSON", attempts: int = 1) -> Record:
    """Return the record of the original's dead letter."""
    now_ms = NOON_MS + minutes * 60_000
    key, value, headers = dead_letter(
        original, stage="segmenter", error_type="invalid_json", message=message, attempts=attempts, now_ms=now_ms
    )
    return Record("messages.dlq", original.partition, 7, NOON_MS, key, value, headers)


def errors_of(letter: Record) -> dict[str, str]:
    headers = [(name, value.decode()) for name, value in letter.headers if name.startswith(DEAD_LETTER_PREFIX)]
    return {name.removeprefix(DEAD_LETTER_PREFIX): value for name, value in headers}


@given(
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=20),
    st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3),
)
def test_dead_letter_gives_back_the_original(key: bytes | None, value: bytes | None, headers: Headers) -> None:
    letter = dead_letter_of(Record(key=key, value=value, headers=headers))
    found = read_dead_letter(letter)
    assert (letter.key, letter.value, letter.headers[: len(headers)]) == (key, value, headers)
    assert (found.key, found.value, found.headers) == (key, value, headers)
    assert found.origin == Origin("messages", 3, 42)
    assert (found.stage, found.error_type, found.problem) == ("segmenter", "invalid_json", "not JSON")
    assert found.address == "messages.dlq/3/7"


def test_headers_say_where_what_and_when() -> None:
    assert errors_of(dead_letter_of(Record(), attempts=4)) == {
        "topic": "messages",
        "partition": "3",
        "offset": "42",
        "stage": "segmenter",
        "type": "invalid_json",
        "message": "not JSON",
        "timestamp": "2026-01-05T12:00:00.000Z",
        "attempts": "4",
    }


def test_replayed_dead_letter_carries_only_its_latest_errors() -> None:
    first = dead_letter_of(Record(headers=[("own", b"1")]))
    second = dead_letter_of(Record(offset=99, headers=first.headers), attempts=2)
    assert len(second.headers) == len(first.headers)
    assert errors_of(second)["offset"] == "99"


@example("bad \ud800 text")
@given(st.text(max_size=2000))
def test_any_error_message_becomes_one_bounded_utf8_line(message: str) -> None:
    found = errors_of(dead_letter_of(Record(), message=message))["message"]
    assert len(found) <= MAX_MESSAGE_CHARACTERS
    assert len(found.splitlines()) <= 1
    assert all(c.isprintable() for c in found)


@pytest.mark.parametrize(
    ("timestamp", "year"), [(10**15, 9999), (2**63 - 1, 9999), (-1, 1970), (1_700_000_000_123, 2023)]
)
def test_any_timestamp_gives_a_time_of_failure(timestamp: int, year: int) -> None:
    assert read_dead_letter(Record(timestamp=timestamp)).failed_at.year == year


@pytest.mark.parametrize(
    "names", [{"offset": b"-1"}, {"topic": b"messages", "partition": b"1" * 5000, "offset": b"2" * 5000}]
)
def test_foreign_record_has_no_origin(names: dict[str, bytes]) -> None:
    headers = [(DEAD_LETTER_PREFIX + name, value) for name, value in names.items()]
    found = read_dead_letter(Record("messages.dlq", headers=headers))
    assert (found.origin, found.stage, found.error_type, found.failed_at) == (None, "unknown", "unknown", NOON)


def test_forged_header_does_not_choose_where_a_replay_goes() -> None:
    forged = [(DEAD_LETTER_PREFIX + "topic", b"summary.created"), ("mine", b"1")]
    found = read_dead_letter(dead_letter_of(Record(headers=forged)))
    assert found.origin == Origin("messages", 3, 42)
    assert found.headers == [("mine", b"1")]


@given(st.integers(0, 2_000_000), st.integers(0, 20_000), st.integers(0, 100_000))
def test_dead_letter_fits_any_topic(value: int, key: int, header: int) -> None:
    original = Record(key=b"k" * key, value=b"v" * value, headers=[("h", b"x" * header)])
    made = dead_letter_of(original)
    size = len(made.key or b"") + len(made.value or b"") + sum(len(n) + len(v) for n, v in made.headers)
    assert size < MAX_BYTES + 10_000
    found = read_dead_letter(made)
    assert found.truncated == (
        (found.key, found.value, found.headers) != (original.key, original.value, original.headers)
    )
    if found.value != original.value:
        said = errors_of(made)
        assert (said["value_bytes"], said["value_sha256"]) == (str(value), hashlib.sha256(b"v" * value).hexdigest())


@pytest.mark.parametrize(
    ("header", "is_real"),
    [
        (Replacement("undecodable_batch", "offsets 1 to 2 cannot be read: EOFError"), True),
        ((REPLACED, b"3000000 bytes"), False),
    ],
)
def test_replaced_record_cannot_be_replayed_unless_forged(header: tuple[str, bytes], is_real: bool) -> None:
    assert read_dead_letter(dead_letter_of(Record(headers=[header]))).truncated is is_real
