"""Records of fetched batches: valid ones are handed on, and the rest are replaced by one that says why."""

import gzip
import hashlib
import time
import tracemalloc
from typing import Any

import pytest
import zstandard
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_UNCOMMITTED, FetchResult, PartitionRecords
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas.records import Replacement, replacement_in
from afterword.streams.kafka.fetching import HANDED_ON_BYTES, KEPT_BYTES, RECORD_BYTES, GuardedRecords, next_records
from afterword.streams.tasks import TURN_SECONDS
from tests.raw_batches import CODECS, COMPRESSORS, batch, packed, record

Record = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

records = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=10)), max_size=3),
    ),
    min_size=1,
    max_size=20,
)


def read(batches: bytes, reader: Any = GuardedRecords) -> list[Record]:
    """Read batches as aiokafka's fetcher does."""
    found: list[Record] = []
    memory = reader(batches)
    while memory.has_next():
        one = memory.next_batch()
        assert one.validate_crc()
        found += [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in one]
    return found


def why(record: Record) -> Replacement:
    found = replacement_in(record[4])
    assert found is not None
    return found


@given(made=records, codec=st.sampled_from(list(CODECS)), more=records)
def test_good_records_pass_unchanged(made: list, codec: str, more: list) -> None:
    batches = batch(made, codec) + batch(more, codec, base=100 + len(made))
    assert read(batches) == read(batches, MemoryRecords)


@pytest.mark.parametrize("codec", COMPRESSORS)
def test_oversized_record_is_replaced_alone(codec: str) -> None:
    huge = b"x" * (RECORD_BYTES + 1000)
    payload = record(0, b"a", b"before") + record(1, b"b", huge) + record(2, b"c", b"after")
    found = read(packed(payload, codec, 3, COMPRESSORS[codec]))
    assert [(offset, key) for offset, _, key, *_ in found] == [(100, b"a"), (101, b"b"), (102, b"c")]
    assert found[1][3] == huge[:KEPT_BYTES]
    assert why(found[1]).error_type == "too_large"
    assert hashlib.sha256(huge).hexdigest() in why(found[1]).detail
    assert found[2][3] == b"after"


class Assignment:
    """A partition's position, as in a consumer's subscription."""

    def __init__(self) -> None:
        self.position = 100

    def state_value(self, _: TopicPartition) -> "Assignment":
        return self

    def consumed_to(self, position: int) -> None:
        self.position = position

    # what FetchResult asks before it hands anything on
    active = has_valid_position = True
    paused = False


def fetched(batches: bytes, value_of: Any = None) -> tuple[FetchResult, Assignment]:
    tp, assignment = TopicPartition("t", 0), Assignment()
    partition = PartitionRecords(tp, GuardedRecords(batches), [], 100, None, value_of, True, READ_UNCOMMITTED)
    return FetchResult(tp, assignment=assignment, partition_records=partition, backoff=0), assignment


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_batch_that_inflates_comes_in_pieces(codec: str) -> None:
    made = [(b"key", bytes([number % 250]) * 600_000, []) for number in range(100)]
    batches = batch(made, codec)
    assert len(batches) < 1_000_000
    result, assignment = fetched(batches)
    pieces = []
    while piece := next_records(result, 1000):
        pieces.append(piece)
        assert assignment.position == piece[-1].offset + 1
        assert sum(len(one.value) for one in piece) < HANDED_ON_BYTES + RECORD_BYTES
    assert len(pieces) >= 4  # more where a turn is over before
    assert [one.value for piece in pieces for one in piece] == [value for _, value, _ in made]
    assert not result.has_more()


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_bomb_is_replaced_in_little_memory(codec: str) -> None:
    bomb = packed(record(0, b"k", bytes(2**26)), codec, 1, COMPRESSORS[codec])
    tracemalloc.start()
    [found] = read(bomb)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert why(found).error_type == "too_large"
    assert peak_bytes < 2**24


def test_call_reads_no_longer_than_a_turn() -> None:
    def slow(value: bytes) -> bytes:
        end = time.thread_time() + TURN_SECONDS / 2
        while time.thread_time() < end:
            pass
        return value

    result, _ = fetched(batch([(b"key", b"%d" % number, []) for number in range(6)], "none"), slow)
    pieces = []
    while piece := next_records(result, 1000):
        pieces.append([one.value for one in piece])
    assert pieces == [[b"0", b"1"], [b"2", b"3"], [b"4", b"5"]]


def test_frame_claiming_a_huge_window_gets_no_memory() -> None:
    compressor = zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters(window_log=27))
    stream = compressor.compressobj()
    payload = stream.compress(record(0, b"k", b"v")) + stream.flush()
    [one] = read(packed(b"", "zstd", 1, lambda _: payload))
    assert why(one).error_type == "undecodable_batch"


@pytest.mark.parametrize("codec", COMPRESSORS)
def test_header_name_outside_utf8_replaces_its_record_only(codec: str) -> None:
    payload = record(0, b"a", b"1", [b"good"]) + record(1, b"b", b"2", [b"\xff\xfe"]) + record(2, b"c", b"3", [b"ok"])
    batches = packed(payload, codec, 3, COMPRESSORS[codec])
    with pytest.raises(UnicodeDecodeError):
        read(batches, MemoryRecords)
    found = read(batches)
    assert [(offset, key, value) for offset, _, key, value, _ in found] == [
        (100, b"a", b"1"),
        (101, b"b", None),
        (102, b"c", b"3"),
    ]
    assert why(found[1]).error_type == "invalid_header"
    assert found[2][4] == [("ok", b"x")]


@given(made=records, position=st.integers(0, 20))
def test_records_beside_a_bad_name_match_aiokafkas(made: list, position: int) -> None:
    at = min(position, len(made) - 1)
    marked = [
        (key, value, [*headers, ("!", b"")] if n == at else headers) for n, (key, value, headers) in enumerate(made)
    ]
    fine = batch(marked)
    bad = bytearray(fine)
    bad[fine.rindex(b"\x02!\x00") + 1] = 0xFF
    found = GuardedRecords(bytes(bad)).next_batch()
    assert found is not None
    expected = read(fine, MemoryRecords)
    for one, (offset, timestamp, key, value, headers) in zip(found, expected, strict=True):
        assert (one.offset, one.timestamp) == (offset, timestamp)
        if replacement_in(list(one.headers)) is None:
            assert (one.key, one.value, list(one.headers)) == (key, value, headers)


@given(data=st.data(), codec=st.sampled_from(list(COMPRESSORS)))
def test_no_bytes_stop_fetching_or_skip_an_offset(data: st.DataObject, codec: str) -> None:
    payload = bytearray(b"".join(record(number, b"k", b"value" * number, [b"name"]) for number in range(10)))
    for _ in range(data.draw(st.integers(0, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    body = bytearray(COMPRESSORS[codec](bytes(payload)))
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    found = read(packed(b"", codec, 10, lambda _: bytes(body)))
    offsets = [offset for offset, *_ in found]
    assert offsets == sorted(set(offsets))
    assert all(100 <= offset < 110 for offset in offsets)
    said = replacement_in(found[-1][4])
    if said and said.error_type == "undecodable_batch":
        assert "to 109" in said.detail


@pytest.mark.parametrize("codec", COMPRESSORS)
@pytest.mark.parametrize("deltas", [(2, 1, 0), (0, 1, 2, 3), (2, 2, 2), (0, 1, 18), (0, -1, 2), (0, 2**31, 2)])
def test_no_record_leaves_with_another_batchs_offset(deltas: tuple[int, ...], codec: str) -> None:
    """The position would move past the next batches; brokers check offsets only in what is compressed."""
    payload = b"".join(record(delta, b"k", b"v") for delta in deltas)
    found = read(packed(payload, codec, 3, COMPRESSORS[codec]))
    offsets = [offset for offset, *_ in found]
    assert offsets == sorted(set(offsets))
    assert all(100 <= offset <= 102 for offset in offsets)
    if offsets[-1] < 102:
        assert why(found[-1]).error_type == "undecodable_batch"


def test_unreadable_rest_is_one_record_that_says_so() -> None:
    payload = record(0, b"a", b"1") + b"\xff" * 20
    found = read(packed(payload, "gzip", 5, gzip.compress))
    assert [r[0] for r in found] == [100, 101]
    assert why(found[1]).error_type == "undecodable_batch"
    assert "offsets 101 to 104" in why(found[1]).detail


def test_wrong_checksum_is_left_to_aiokafka() -> None:
    made = bytearray(batch([(b"k", b"v", [])], "gzip"))
    made[-1] ^= 1
    one = GuardedRecords(bytes(made)).next_batch()
    assert one is not None
    assert not one.validate_crc()


@pytest.mark.parametrize("cut", [0, 1, 30, 60, 61, 70])
def test_truncated_batch_is_left_to_the_next_fetch(cut: int) -> None:
    whole = batch([(b"k", b"v", [])], "gzip")
    assert read(whole + whole[:cut]) == read(whole)
    alone = GuardedRecords(whole[:cut])
    assert (alone.has_next(), alone.size_in_bytes()) == (False, cut)
