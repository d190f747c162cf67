import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from aiokafka.errors import (
    IllegalOperation,
    InvalidTxnState,
    KafkaError,
    NodeNotReadyError,
    ProducerFenced,
    UnknownError,
)
from hypothesis import given
from hypothesis import strategies as st

from afterword.operating.dlq import RESOLUTION_PREFIX, Filters, is_overtaken, resolution, resolved_offset
from afterword.schemas.dead_letters import (
    DEAD_LETTER_PREFIX,
    MAX_BYTES,
    Origin,
    dead_letter,
    read_dead_letter,
)
from afterword.schemas.headers import REPLACED, Headers, Replacement
from afterword.streams.errors import BrokerUnavailable
from afterword.streams.kafka.clients import broker_errors

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


def dead_letter_of(original: Record, at: int = 7, error_type: str = "invalid_json", minutes: int = 0) -> Record:
    """Return the record of the original's dead letter."""
    key, value, headers = dead_letter(
        original, stage="segmenter", error_type=error_type, message="not JSON", now_ms=NOON_MS + minutes * 60_000
    )
    return Record("messages.dlq", original.partition, at, NOON_MS, key, value, headers)


@given(
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=20),
    st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3),
)
def test_dead_letter_gives_back_the_original(key: bytes | None, value: bytes | None, headers: Headers) -> None:
    found = read_dead_letter(dead_letter_of(Record(key=key, value=value, headers=headers)))
    assert (found.key, found.value, found.headers) == (key, value, headers)
    assert found.origin == Origin("messages", 3, 42)
    assert (found.stage, found.error_type, found.problem) == ("segmenter", "invalid_json", "not JSON")
    assert found.address == "messages.dlq/3/7"


def test_resolution_names_its_dead_letter_and_is_none() -> None:
    found = read_dead_letter(dead_letter_of(Record()))
    record = Record("messages.dlq", 3, 8, key=None, value=b"", headers=resolution(found, "replayed", NOON))
    assert resolved_offset(record) == 7
    assert resolved_offset(dead_letter_of(Record())) is None


def test_foreign_record_has_no_origin() -> None:
    found = read_dead_letter(Record("messages.dlq", headers=[(DEAD_LETTER_PREFIX + "offset", b"-1")]))
    assert found.origin is None
    assert (found.stage, found.error_type) == ("unknown", "unknown")
    assert found.failed_at == NOON


def test_forged_header_does_not_choose_where_a_replay_goes() -> None:
    forged = [(DEAD_LETTER_PREFIX + "topic", b"summary.created"), ("mine", b"1")]
    found = read_dead_letter(dead_letter_of(Record(headers=forged)))
    assert found.origin == Origin("messages", 3, 42)
    assert found.headers == [("mine", b"1")]


def test_each_filter_excludes_what_does_not_match() -> None:
    found = read_dead_letter(dead_letter_of(Record(), minutes=5))
    assert Filters()(found)
    assert Filters("segmenter", "invalid_json", NOON, "c1")(found)
    for wrong in (
        Filters(stage="summarizer"),
        Filters(error_type="too_large"),
        Filters(since=NOON + timedelta(minutes=6)),
        Filters(conversation_id="c2"),
    ):
        assert not wrong(found)


@pytest.mark.parametrize("offset", [b"0", b"7", b"9" * 5000, "٣".encode()])
def test_producers_header_resolves_no_dead_letter(offset: bytes) -> None:
    forged = [(RESOLUTION_PREFIX + "offset", offset)]
    assert resolved_offset(dead_letter_of(Record(headers=forged))) is None
    assert resolved_offset(dead_letter_of(Record(key=None, value=None, headers=forged))) is None
    assert resolved_offset(Record("messages.dlq", value=b"{", headers=forged)) is None  # a resolution has no value
    failed = [(DEAD_LETTER_PREFIX + "offset", b"0")]
    assert resolved_offset(Record("messages.dlq", key=None, value=None, headers=forged + failed)) is None


def test_huge_numbers_are_no_origin() -> None:
    names = {"topic": b"messages", "partition": b"1" * 5000, "offset": b"2" * 5000}
    headers = [(DEAD_LETTER_PREFIX + name, value) for name, value in names.items()]
    assert read_dead_letter(Record("messages.dlq", headers=headers)).origin is None


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
        said = dict(made.headers)
        assert said[DEAD_LETTER_PREFIX + "value_bytes"] == str(value).encode()
        assert said[DEAD_LETTER_PREFIX + "value_sha256"].decode() == hashlib.sha256(b"v" * value).hexdigest()


def test_replacement_cannot_be_replayed() -> None:
    replaced = Record(headers=[Replacement("undecodable_batch", "offsets 1 to 2 cannot be read: EOFError")])
    assert read_dead_letter(dead_letter_of(replaced)).truncated


def test_forged_replacement_can_be_replayed() -> None:
    pretending = Record(headers=[(REPLACED, b"3000000 bytes")])
    assert not read_dead_letter(dead_letter_of(pretending)).truncated


def unexpected(cause: Exception) -> KafkaError:
    """The error that aiokafka's sender makes of one that it does not know."""
    try:
        raise KafkaError("Unexpected error during batch delivery") from cause
    except KafkaError as error:
        return error


def test_overtaken_replay_differs_from_an_absent_broker() -> None:
    assert is_overtaken(ProducerFenced())
    assert is_overtaken(unexpected(InvalidTxnState()))
    assert is_overtaken(unexpected(UnknownError()))
    assert not is_overtaken(unexpected(NodeNotReadyError()))
    assert is_overtaken(IllegalOperation("not in transaction"))
    with pytest.raises(BrokerUnavailable, match=r"batch delivery \(NodeNotReadyError\)"), broker_errors("b:9092"):
        raise unexpected(NodeNotReadyError())
