"""A snapshot comes back as it was, and anything else is noticed before it is used."""

import hashlib
import tracemalloc
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.runtime.database import DatabasePosition
from afterword.streams.runtime.snapshot_format import (
    FRAME,
    MAGIC,
    MOST_BLOCK_BYTES,
    Block,
    SnapshotDecoder,
    SnapshotEncoder,
    SnapshotUnusable,
)

positions = st.builds(
    DatabasePosition,
    source=st.integers(-1, 2**62),
    lineage=st.text(max_size=5),
    bookmarks=st.dictionaries(st.text(max_size=5), st.integers(-1, 2**62), max_size=3),
    written_ms=st.integers(0, 2**53),
    source_id=st.text(max_size=5),
)
rows = st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=30)), min_size=1, max_size=5)
blocks = st.lists(st.builds(Block, st.text(max_size=5), rows), max_size=5)


def encoded(position: DatabasePosition, blocks: Iterable[Block]) -> list[bytes]:
    encoder = SnapshotEncoder()
    return [encoder.head(position), *(encoder.rows(*block) for block in blocks), encoder.end()]


def decoded(pieces: Iterable[bytes]) -> Iterator[DatabasePosition | Block]:
    decoder = SnapshotDecoder()
    for piece in pieces:
        yield from decoder.feed(piece)
    decoder.close()


def cut(whole: bytes, at: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(one % (len(whole) + 1) for one in at), len(whole)]
    return [whole[begin:end] for begin, end in pairwise(edges)]


EXAMPLE = encoded(DatabasePosition(7, "lineage", {"rows": 5}), [Block("rows", [(b"a", b"1"), (b"b", b"2")])] * 2)


@given(positions, blocks, st.lists(st.integers(0, 10_000), max_size=20))
def test_it_comes_back_as_it_was_in_whatever_pieces(
    position: DatabasePosition, given_blocks: list[Block], at: list[int]
) -> None:
    whole = b"".join(encoded(position, given_blocks))
    assert list(decoded(cut(whole, at))) == [position, *given_blocks]


@given(st.integers(0, len(b"".join(EXAMPLE)) - 1), st.integers(1, 255), st.lists(st.integers(0, 999), max_size=3))
def test_any_changed_byte_is_noticed_and_nothing_that_was_changed_is_handed_on(
    index: int, difference: int, at: list[int]
) -> None:
    whole = bytearray(b"".join(EXAMPLE))
    whole[index] ^= difference
    right, found = list(decoded(EXAMPLE)), list[object]()
    with pytest.raises(SnapshotUnusable):
        found.extend(decoded(cut(bytes(whole), at)))  # those before the error are in the list
    assert found == right[: len(found)]


@given(st.integers(0, len(b"".join(EXAMPLE)) - 1))
def test_any_end_before_the_end_is_noticed(length: int) -> None:
    with pytest.raises(SnapshotUnusable):
        list(decoded([b"".join(EXAMPLE)[:length]]))


@given(st.lists(st.integers(1, 3), max_size=5))
def test_blocks_that_are_missing_come_twice_or_in_another_order_are_noticed(numbers: list[int]) -> None:
    made = [EXAMPLE[0], *(EXAMPLE[number] for number in numbers)]
    if made == EXAMPLE:
        return
    with pytest.raises(SnapshotUnusable):
        list(decoded(made))


@given(st.binary(min_size=1))
def test_what_follows_the_end_is_noticed(more: bytes) -> None:
    with pytest.raises(SnapshotUnusable):
        list(decoded([*EXAMPLE, more]))


@given(st.binary() | st.binary().map(MAGIC.__add__))
def test_foreign_bytes_are_no_snapshot(found: bytes) -> None:
    with pytest.raises(SnapshotUnusable):
        list(decoded([found]))


@given(st.binary(max_size=40) | st.sampled_from([b"r\0\1a", b"e", b"h[]", b"h{}", b'h{"source": "x"}', b"", b"x"]))
def test_a_first_block_of_anybody_else_is_a_position_or_unusable(plain: bytes) -> None:
    """It has the right digest: somebody wrote it on purpose, or another version."""
    with suppress(SnapshotUnusable):
        for found in SnapshotDecoder().feed(MAGIC + forged(zlib.compress(plain))):
            assert isinstance(found, DatabasePosition)


@given(st.binary(max_size=40).map(b"r".__add__))
def test_rows_of_anybody_else_are_rows_or_unusable(plain: bytes) -> None:
    head = EXAMPLE[0]
    packed, before = zlib.compress(plain), head[len(MAGIC) + 4 : len(MAGIC) + FRAME.size]
    with suppress(SnapshotUnusable):
        found = list(SnapshotDecoder().feed(head + forged(packed, before)))
        assert isinstance(found[1], Block)


def forged(packed: bytes, before: bytes = b"") -> bytes:
    return FRAME.pack(len(packed), hashlib.blake2b(before + packed, digest_size=16).digest()) + packed


def test_a_later_version_is_told_from_damage() -> None:
    with pytest.raises(SnapshotUnusable) as caught:
        list(decoded([MAGIC[:-1] + b"\2" + b"".join(EXAMPLE)[len(MAGIC) :]]))
    assert caught.value.reason == "unknown_version"


def test_a_block_that_says_it_is_huge_is_not_waited_for() -> None:
    with pytest.raises(SnapshotUnusable):
        list(SnapshotDecoder().feed(MAGIC + FRAME.pack(MOST_BLOCK_BYTES + 1, bytes(16))))


def test_a_bomb_is_not_decompressed_further_than_the_limit() -> None:
    bomb = zlib.compressobj()
    packed = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(200)) + bomb.flush()
    tracemalloc.start()
    try:
        with pytest.raises(SnapshotUnusable):
            list(SnapshotDecoder().feed(MAGIC + forged(packed)))
        assert tracemalloc.get_traced_memory()[1] < 3 * MOST_BLOCK_BYTES
    finally:
        tracemalloc.stop()


def test_a_row_that_is_larger_than_any_block_is_refused_when_it_is_written() -> None:
    with pytest.raises(SnapshotUnusable, match="row_too_large"):
        SnapshotEncoder().rows("rows", [(b"", bytes(MOST_BLOCK_BYTES))])
