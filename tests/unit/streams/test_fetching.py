"""Records of fetched batches that are handed on: everything that is fine, in bounded pieces."""

import gzip
import hashlib

import pytest
import zstandard
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas.replacements import read_replacement
from afterword.streams.fetching import (
    DECODED_BYTES,
    KEPT_BYTES,
    MOST_ATTEMPTS,
    RECORD_BYTES,
    BoundedConsumer,
    bounded,
    is_safe,
)
from tests.raw_batches import CODECS, COMPRESSORS, batch, field, packed, record, varint

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


def read(batches: bytes) -> list[Record]:
    """Read batches like aiokafka."""
    found: list[Record] = []
    memory = MemoryRecords(batches)
    while memory.has_next():
        one = memory.next_batch()
        assert one.validate_crc()
        found += [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in one]
    return found


def next_offset(batches: bytes) -> int:
    memory, offset = MemoryRecords(batches), -1
    while memory.has_next():
        offset = memory.next_batch().next_offset
    return offset


def read_all(batches: bytes, limit: int, *, check_names: bool = False, first: int = 100) -> tuple[list[Record], int]:
    """Read like a consumer that fetches again from where it stopped; and count its fetches."""
    found: list[Record] = []
    offset, end, fetches = first, next_offset(batches), 0
    while offset < end:
        piece = bounded(batches, offset, limit, check_names=check_names).batches
        found += [r for r in read(piece) if r[0] >= offset]
        assert next_offset(piece) > offset
        offset, fetches = next_offset(piece), fetches + 1
    return found, fetches


def why(record: Record) -> dict[str, str]:
    found = read_replacement(record[4])
    assert found is not None
    return found._asdict()


@given(made=records, codec=st.sampled_from(list(CODECS)), more=records, check_names=st.booleans())
def test_what_is_fine_is_handed_on_as_it_is(made: list, codec: str, more: list, check_names: bool) -> None:
    batches = batch(made, codec) + batch(more, codec, base=100 + len(made))
    assert read(bounded(batches, 100, check_names=check_names).batches) == read(batches)


@given(made=records, codec=st.sampled_from(list(CODECS)), limit=st.integers(1, 2000), check_names=st.booleans())
def test_a_small_limit_makes_more_fetches_and_the_same_records(
    made: list, codec: str, limit: int, check_names: bool
) -> None:
    batches = batch(made, codec)
    assert read_all(batches, limit, check_names=check_names)[0] == read(batches)


@given(made=records, start=st.integers(100, 130))
def test_records_before_the_position_may_be_left_out_and_no_others(made: list, start: int) -> None:
    batches = batch(made, "zstd")
    if start < 100 + len(made):
        assert read_all(batches, 50, first=start)[0] == [r for r in read(batches) if r[0] >= start]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_batch_that_becomes_very_large_comes_in_pieces(codec: str) -> None:
    made = [(b"key", bytes([number % 250]) * 600_000, []) for number in range(100)]
    batches = batch(made, codec)
    assert len(batches) < 1_000_000
    found, fetches = read_all(batches, DECODED_BYTES)
    assert found == read(batches)
    assert fetches == 4
    assert len(bounded(batches, 100).batches) <= DECODED_BYTES + RECORD_BYTES


@pytest.mark.parametrize("codec", COMPRESSORS)
def test_a_record_that_is_too_large_is_replaced_and_its_neighbours_are_not(codec: str) -> None:
    huge = b"x" * (RECORD_BYTES + 1000)
    payload = record(0, b"a", b"before") + record(1, b"b", huge) + record(2, b"c", b"after")
    found, _ = read_all(packed(payload, codec, 3, COMPRESSORS[codec]), DECODED_BYTES)
    assert [(offset, key) for offset, _, key, *_ in found] == [(100, b"a"), (101, b"b"), (102, b"c")]
    assert found[1][3] == huge[:KEPT_BYTES]
    assert why(found[1])["error_type"] == "too_large"
    assert hashlib.sha256(huge).hexdigest() in why(found[1])["detail"]
    assert found[2][3] == b"after"


def test_16_kilobytes_that_become_512_megabytes_stay_small() -> None:
    chunks = zstandard.ZstdCompressor().compressobj()
    inner = b"\0" + varint(0) + varint(0) + field(b"k") + varint(2**29)
    compressed = chunks.compress(varint(len(inner) + 2**29 + 1) + inner)
    for _ in range(2**9):
        compressed += chunks.compress(bytes(2**20))
    compressed += chunks.compress(varint(0)) + chunks.flush()
    assert len(compressed) < 60_000
    made = packed(b"", "zstd", 1, lambda _: compressed)
    handed_on = bounded(made, 100).batches
    assert len(handed_on) < 100_000
    assert why(read(handed_on)[0])["error_type"] == "too_large"


@pytest.mark.parametrize("codec", COMPRESSORS)
def test_a_header_name_that_is_not_utf8_replaces_its_record_only(codec: str) -> None:
    payload = record(0, b"a", b"1", [b"good"]) + record(1, b"b", b"2", [b"\xff\xfe"]) + record(2, b"c", b"3")
    batches = packed(payload, codec, 3, COMPRESSORS[codec])
    with pytest.raises(UnicodeDecodeError):
        read(batches)
    handed_on = bounded(batches, 100, check_names=True)
    found = read(handed_on.batches)
    assert handed_on.found_names
    assert [(key, value) for _, _, key, value, _ in found] == [(b"a", b"1"), (b"b", None), (b"c", b"3")]
    assert why(found[1])["error_type"] == "invalid_header"


@given(data=st.data(), codec=st.sampled_from(list(COMPRESSORS)), check_names=st.booleans())
def test_no_bytes_stop_it_and_the_position_always_moves(data: st.DataObject, codec: str, check_names: bool) -> None:
    payload = bytearray(b"".join(record(number, b"k", b"value" * number) for number in range(10)))
    for _ in range(data.draw(st.integers(0, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    body = bytearray(COMPRESSORS[codec](bytes(payload)))
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    batches = packed(b"", codec, 10, lambda _: bytes(body))
    offset = 100
    while offset < 110:
        piece = bounded(batches, offset, 100, check_names=check_names).batches
        assert next_offset(piece) > offset
        offset = next_offset(piece)
    assert offset == 110


@given(data=st.data(), codec=st.sampled_from(list(COMPRESSORS)))
def test_aiokafka_can_read_whatever_is_handed_on_once_every_record_is_parsed(data: st.DataObject, codec: str) -> None:
    payload = bytearray(b"".join(record(number, b"k", b"value" * number, [b"name"]) for number in range(10)))
    for _ in range(data.draw(st.integers(1, 6))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    found, _ = read_all(packed(bytes(payload), codec, 10, COMPRESSORS[codec]), 10_000, check_names=True)
    offsets = [offset for offset, *_ in found]
    assert offsets == sorted(set(offsets))
    assert all(100 <= offset < 110 for offset in offsets)


@pytest.mark.parametrize("codec", COMPRESSORS)
@pytest.mark.parametrize("check_names", [False, True])
@pytest.mark.parametrize("deltas", [(2, 1, 0), (0, 1, 2, 3), (2, 2, 2), (0, 1, 18), (0, -1, 2), (0, 2**31, 2)])
def test_no_record_is_handed_on_at_an_offset_that_is_not_its_batchs(
    deltas: tuple[int, ...], check_names: bool, codec: str
) -> None:
    """The position would move past the next batches; brokers check offsets only in what is compressed."""
    payload = b"".join(record(delta, b"k", b"v") for delta in deltas)
    made = packed(payload, codec, 3, COMPRESSORS[codec])
    assert not is_safe(made)
    found = read(bounded(made, 100, check_names=check_names).batches)
    offsets = [offset for offset, *_ in found]
    assert offsets == sorted(set(offsets))
    assert all(100 <= offset <= 102 for offset in offsets)
    if offsets[-1] < 102:
        assert why(found[-1])["error_type"] == "undecodable_batch"


def test_what_cannot_be_read_on_is_one_record_that_says_so() -> None:
    payload = record(0, b"a", b"1") + b"\xff" * 20
    found = read(bounded(packed(payload, "gzip", 5, gzip.compress), 100, check_names=True).batches)
    assert [r[0] for r in found] == [100, 101]
    assert why(found[1])["error_type"] == "undecodable_batch"
    assert "offsets 101 to 104" in why(found[1])["detail"]


def test_a_wrong_checksum_is_left_to_aiokafka() -> None:
    made = bytearray(batch([(b"k", b"v", [])], "gzip"))
    made[-1] ^= 1
    assert bounded(bytes(made), 100).batches == made


@pytest.mark.parametrize("cut", [0, 1, 30, 60, 61, 70])
def test_what_the_broker_cut_off_is_left_to_the_next_fetch(cut: int) -> None:
    whole = batch([(b"k", b"v", [])], "gzip")
    assert bounded(whole + whole[:cut], 100).batches in (whole + whole[:cut], bounded(whole, 100).batches)
    assert bounded(whole[:cut], 100).batches == whole[:cut]


@given(
    records=st.lists(
        st.tuples(st.integers(-3, 2**33), st.integers(-(2**40), 2**40), st.binary(max_size=200)), max_size=5
    )
)
def test_a_plain_batch_is_safe_if_its_offsets_increase_up_to_the_last(records: list[tuple[int, int, bytes]]) -> None:
    payload = b"".join(record(delta, b"k", value, timestamp=time) for delta, time, value in records)
    deltas = [delta for delta, *_ in records]
    expected = deltas == sorted(set(deltas)) and all(0 <= delta < 5 for delta in deltas)
    assert is_safe(packed(payload, "none", 5, bytes)) == expected


def test_batches_that_are_neither_compressed_nor_large_need_no_look() -> None:
    assert is_safe(batch([(b"k", b"v" * 1000, [])]))
    assert not is_safe(batch([(b"k", b"v", [])], "lz4"))
    assert not is_safe(batch([(b"k", b"v" * RECORD_BYTES, [])]))


def test_the_pure_python_and_the_compiled_batch_are_not_told_apart() -> None:
    assert DefaultRecordBatch(bounded(batch([(b"k", b"v", [])], "snappy"), 100).batches).validate_crc()


async def test_what_aiokafka_cannot_parse_at_any_attempt_is_an_error_of_kafka() -> None:
    attempts = []

    async def call() -> None:
        attempts.append(1)
        raise ValueError("an endless varint")

    consumer = BoundedConsumer(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(CorruptRecordException) as raised:
        await consumer._parsed(call, [])
    await consumer.stop()
    assert len(attempts) == MOST_ATTEMPTS + 1
    assert "varint" not in str(raised.value)
