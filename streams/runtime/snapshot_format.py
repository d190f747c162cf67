"""Form of a snapshot: a head with its position, the rows in blocks, and an end.

A block is its length, a digest and what zlib made of it. The digest covers all blocks before it, too: none can be
missing, come twice or be damaged without notice, and each is checked before it is decompressed and used.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from afterword.streams.runtime.database import DatabasePosition, StoredRow

MAGIC = b"eos.snapshot\1"
"""The last byte is the version of the form."""
FRAME = struct.Struct(">I16s")
"""Bytes of the block as it was compressed, and its digest."""
DIGEST_BYTES = 16
ROW = struct.Struct(">II")
"""Bytes of the key and of the value."""
NAME = struct.Struct(">H")
"""Bytes of the table's name."""
END = struct.Struct(">Q")
"""Number of rows."""
HEAD_KIND, ROWS_KIND, END_KIND = b"h", b"r", b"e"
MOST_BLOCK_BYTES = 32 << 20
"""Far more than a block of small rows has, or than the largest record that a changelog takes."""
QUICK = 1
"""Level of compression: the worker has other things to do."""


class SnapshotUnusable(Exception):
    """A snapshot that is ignored, or cannot be written. `reason`: in a word, for logs."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Block(NamedTuple):
    """Rows of one table."""

    table: str
    rows: list[StoredRow]


class SnapshotEncoder:
    """Encodes one snapshot: `head`, then `rows` for any number of blocks, then `end`."""

    def __init__(self) -> None:
        self._digest = b""
        self._rows = 0

    def head(self, position: DatabasePosition) -> bytes:
        return MAGIC + self._block(HEAD_KIND + orjson.dumps(position))

    def rows(self, table: str, rows: Sequence[StoredRow]) -> bytes:
        self._rows += len(rows)
        name = table.encode()
        parts = [ROWS_KIND, NAME.pack(len(name)), name]
        for key, value in rows:
            parts += (ROW.pack(len(key), len(value)), key, value)
        return self._block(b"".join(parts))

    def end(self) -> bytes:
        return self._block(END_KIND + END.pack(self._rows))

    def _block(self, plain: bytes) -> bytes:
        """Raises: SnapshotUnusable if it is too large."""
        if len(plain) > MOST_BLOCK_BYTES:
            raise SnapshotUnusable("row_too_large")
        packed = zlib.compress(plain, QUICK)
        self._digest = _digest(self._digest, packed)
        return FRAME.pack(len(packed), self._digest) + packed


class SnapshotDecoder:
    """Decodes a snapshot that comes in pieces of any size; it holds a piece and a block at most."""

    def __init__(self) -> None:
        self._left = bytearray()
        self._digest = b""
        self._is_begun = self._is_ended = False
        self._rows = 0

    def feed(self, piece: bytes) -> Iterator[DatabasePosition | Block]:
        """Yield the position, which comes first, and blocks, as far as they are there. Raises: SnapshotUnusable."""
        self._left += piece
        if not self._is_begun:
            if len(self._left) < len(MAGIC):
                return
            self._check_version()
        while (packed := self._next()) is not None:
            plain = _decompressed(packed)
            kind, rest = plain[:1], memoryview(plain)[1:]
            if self._is_ended or (kind == HEAD_KIND) != (not self._is_begun):
                raise SnapshotUnusable("damaged")
            self._is_begun = True
            if kind == HEAD_KIND:
                yield _read_position(rest)
            elif kind == ROWS_KIND:
                block = _read_rows(rest)
                self._rows += len(block.rows)
                yield block
            else:
                self._is_ended = _is_end(kind, rest, self._rows)

    def close(self) -> None:
        """Check that all of it has come, and nothing after it. Raises: SnapshotUnusable."""
        if not self._is_ended or self._left:
            raise SnapshotUnusable("damaged")

    def _check_version(self) -> None:
        magic = bytes(self._left[: len(MAGIC)])
        if magic != MAGIC:
            raise SnapshotUnusable("unknown_version" if magic[:-1] == MAGIC[:-1] else "damaged")

    def _next(self) -> bytes | None:
        """Return the next block, compressed, if all of it is there."""
        at = 0 if self._is_begun else len(MAGIC)
        if len(self._left) < at + FRAME.size:
            return None
        length, digest = FRAME.unpack_from(self._left, at)
        if length > MOST_BLOCK_BYTES:
            raise SnapshotUnusable("damaged")
        begin = at + FRAME.size
        if len(self._left) < begin + length:
            return None
        packed = bytes(self._left[begin : begin + length])
        del self._left[: begin + length]
        self._digest = _digest(self._digest, packed)
        if digest != self._digest:
            raise SnapshotUnusable("damaged")
        return packed


def _digest(before: bytes, packed: bytes) -> bytes:
    return blake2b(before + packed, digest_size=DIGEST_BYTES).digest()


def _decompressed(packed: bytes) -> bytes:
    """Raises: SnapshotUnusable, also for what would be larger than any block."""
    unpacking = zlib.decompressobj()
    try:
        plain = unpacking.decompress(packed, MOST_BLOCK_BYTES)
    except zlib.error as error:
        raise SnapshotUnusable("damaged") from error
    if not unpacking.eof or unpacking.unused_data:
        raise SnapshotUnusable("damaged")
    return plain


def _read_position(head: memoryview) -> DatabasePosition:
    """Raises: SnapshotUnusable."""
    try:
        found = orjson.loads(head)
        position = DatabasePosition(**found)
    except (TypeError, ValueError) as error:
        raise SnapshotUnusable("damaged") from error
    if not all(
        _has_type(getattr(position, one.name), getattr(DatabasePosition(), one.name)) for one in fields(position)
    ):
        raise SnapshotUnusable("damaged")
    if not all(_has_type(offset, 0) for offset in position.bookmarks.values()):
        raise SnapshotUnusable("damaged")
    return position


def _has_type(value: Any, example: Any) -> bool:
    return type(value) is type(example)


def _read_rows(plain: memoryview) -> Block:
    """Raises: SnapshotUnusable."""
    try:
        (length,) = NAME.unpack_from(plain)
        at = NAME.size + length
        table = bytes(plain[NAME.size : at]).decode()
        rows: list[StoredRow] = []
        while at < len(plain):
            key_bytes, value_bytes = ROW.unpack_from(plain, at)
            middle = at + ROW.size + key_bytes
            rows.append((bytes(plain[at + ROW.size : middle]), bytes(plain[middle : middle + value_bytes])))
            at = middle + value_bytes
    except (struct.error, UnicodeDecodeError) as error:
        raise SnapshotUnusable("damaged") from error
    if at != len(plain):
        raise SnapshotUnusable("damaged")
    return Block(table, rows)


def _is_end(kind: bytes, plain: memoryview, rows: int) -> bool:
    """Raises: SnapshotUnusable."""
    if kind != END_KIND or bytes(plain) != END.pack(rows):
        raise SnapshotUnusable("damaged")
    return True
