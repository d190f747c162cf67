"""Which dead letters a command selects, which are resolved, and when a replay was overtaken."""

from datetime import timedelta

import pytest
from aiokafka.errors import (
    IllegalOperation,
    InvalidTxnState,
    KafkaError,
    NodeNotReadyError,
    ProducerFenced,
    UnknownError,
)

from afterword.operating.dlq import RESOLUTION_PREFIX, Filters, is_overtaken, resolution, resolved_offset
from afterword.schemas.dead_letters import DEAD_LETTER_PREFIX, read_dead_letter
from afterword.streams.errors import BrokerUnavailable
from afterword.streams.kafka.clients import broker_errors
from tests.unit.schemas.test_dead_letters import NOON, Record, dead_letter_of


def test_resolution_names_its_dead_letter_and_is_not_one() -> None:
    found = read_dead_letter(dead_letter_of(Record()))
    record = Record("messages.dlq", 3, 8, key=None, value=b"", headers=resolution(found, "replayed", NOON))
    assert resolved_offset(record) == 7
    assert resolved_offset(dead_letter_of(Record())) is None


@pytest.mark.parametrize(
    ("filters", "matches"),
    [
        (Filters(), True),
        (Filters("segmenter", "invalid_json", NOON, "c1"), True),
        (Filters(stage="summarizer"), False),
        (Filters(error_type="too_large"), False),
        (Filters(since=NOON + timedelta(minutes=6)), False),
        (Filters(conversation_id="c2"), False),
    ],
)
def test_each_filter_excludes_what_does_not_match(filters: Filters, matches: bool) -> None:
    assert filters(read_dead_letter(dead_letter_of(Record(), minutes=5))) is matches


@pytest.mark.parametrize("offset", [b"0", b"7", b"9" * 5000, "٣".encode()])
def test_producers_header_resolves_no_dead_letter(offset: bytes) -> None:
    forged = [(RESOLUTION_PREFIX + "offset", offset)]
    assert resolved_offset(dead_letter_of(Record(headers=forged))) is None
    assert resolved_offset(dead_letter_of(Record(key=None, value=None, headers=forged))) is None
    assert resolved_offset(Record("messages.dlq", value=b"{", headers=forged)) is None  # a resolution has no value
    failed = [(DEAD_LETTER_PREFIX + "offset", b"0")]
    assert resolved_offset(Record("messages.dlq", key=None, value=None, headers=forged + failed)) is None


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
