from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas.dead_letters import DEAD_LETTER_PREFIX, MAX_MESSAGE_CHARACTERS, dead_letter, read_dead_letter

NOW_MS = 1_700_000_000_123


@dataclass(frozen=True)
class FakeRecord:
    topic: str = "messages"
    partition: int = 3
    offset: int = 42
    timestamp: int = NOW_MS
    key: bytes | None = b"conversation"
    value: bytes | None = b"\xff not json"
    headers: Sequence[tuple[str, bytes]] = ()


def letter_of(record: FakeRecord, message: str = "broken", attempts: int = 1):
    return dead_letter(
        record, stage="decode", error_type="invalid_json", message=message, attempts=attempts, now_ms=NOW_MS
    )


def errors_of(record: FakeRecord, message: str = "broken", attempts: int = 1) -> dict[str, str]:
    _, _, headers = letter_of(record, message, attempts)
    return {n.removeprefix(DEAD_LETTER_PREFIX): v.decode() for n, v in headers if n.startswith(DEAD_LETTER_PREFIX)}


def test_dead_letter_keeps_the_records_key_and_value():
    record = FakeRecord(headers=[("ce_id", b"1"), ("trace", b"\x00\xff"), ("trace", b"again")])
    key, value, headers = letter_of(record)
    assert (key, value) == (record.key, record.value)
    assert headers[:3] == list(record.headers)


def test_record_without_key_and_value_stays_so():
    assert letter_of(FakeRecord(key=None, value=None))[:2] == (None, None)


def test_headers_say_where_what_and_when():
    assert errors_of(FakeRecord(), attempts=4) == {
        "topic": "messages",
        "partition": "3",
        "offset": "42",
        "stage": "decode",
        "type": "invalid_json",
        "message": "broken",
        "timestamp": "2023-11-14T22:13:20.123Z",
        "attempts": "4",
    }


def test_replayed_dead_letter_carries_only_its_latest_errors():
    _, _, first = letter_of(FakeRecord(headers=[("own", b"1")]))
    _, _, second = letter_of(FakeRecord(offset=99, headers=first), attempts=2)
    assert len(second) == len(first)
    assert (DEAD_LETTER_PREFIX + "offset", b"99") in second
    assert (DEAD_LETTER_PREFIX + "offset", b"42") not in second


@given(st.text(max_size=2000))
def test_any_error_message_becomes_one_bounded_utf8_line(message: str):
    found = errors_of(FakeRecord(), message)["message"]
    assert len(found) <= MAX_MESSAGE_CHARACTERS
    assert len(found.splitlines()) <= 1
    assert all(c.isprintable() for c in found)


def test_lone_surrogate_does_not_break_the_dead_letter():
    assert "\ud800" not in errors_of(FakeRecord(), "bad \ud800 text")["message"]


def test_any_timestamp_gives_a_time_of_failure():
    for timestamp, year in ((10**15, 9999), (2**63 - 1, 9999), (-1, 1970), (NOW_MS, 2023)):
        assert read_dead_letter(FakeRecord(timestamp=timestamp)).failed_at.year == year
