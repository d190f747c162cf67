"""A Kafka consumer that no batch can stop or exhaust.

A broker limits only the compressed size of a batch. aiokafka decompresses a whole batch at once, however large it
becomes, and drops the rest of a batch at a header name that is not UTF-8. `BoundedConsumer` reads more carefully:

- A large batch is decompressed as a stream, as its records are taken. One call returns about `HANDED_ON_BYTES` of one
  partition's records at most, or as many as can be read in one turn.
- A record that cannot be passed on is replaced by a small one with a `Replacement` as its header, at the same offset
  and if possible with the same key. Decoding it raises the original's error, so it ends as a dead letter.
- A record whose offset is outside its batch's range would move the consumer past other records, and brokers check that
  only in compressed batches. The rest of such a batch is replaced too.

Format: Kafka protocol guide, record batch v2.
"""

import gzip
import hashlib
import io
import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import cramjam
import lz4.frame
import zstandard
from aiokafka import AIOKafkaConsumer
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import MemoryRecords

from afterword.schemas.records import Replacement
from afterword.streams.tasks import Turn

HANDED_ON_BYTES = 16 * 2**20
"""Limit for one partition's records in one call; the last record may exceed it."""
RECORD_BYTES = 2 * 2**20
"""Larger than any record that is accepted, so whatever is replaced would have been rejected anyway."""
KEPT_BYTES = 64 * 2**10
"""Bytes of an oversized record's value that are kept."""
KEY_BYTES = 4096
CHUNK_BYTES = 256 * 2**10
WINDOW_BYTES = 32 * 2**20
"""Memory that a zstd frame may ask for. Kafka's clients and brokers use levels that ask for 8 MiB at most."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_OVERHEAD = 12
"""Bytes that a batch's length does not count: the base offset and the length itself."""
_LENGTH_AT, _MAGIC_AT, _ATTRIBUTES_AT = 8, 16, 22
_CODEC, _APPEND_TIME = 0x07, 0x08
_SNAPPY_RATIO = 32
"""A snappy block decompresses to at most this times its size: three bytes copy at most 64."""
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_UNREADABLE = (
    *(CorruptRecordException, ValueError, IndexError, EOFError, struct.error),
    *(OSError, zlib.error, RuntimeError, zstandard.ZstdError, cramjam.DecompressionError),  # raised by the codecs
)


class BoundedConsumer(AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka is not typed
    """An `AIOKafkaConsumer` that reads batches carefully."""

    async def start(self) -> None:
        # aiokafka, which is pinned exactly, offers no other way. From now on this applies to all consumers of the
        # process, even those that are running: what they have already fetched keeps its class.
        fetcher.MemoryRecords, fetcher.FetchResult.getall = GuardedRecords, next_records
        await super().start()


def next_records(self: Any, max_records: int | None = None) -> list[Any]:
    """Return a partition's next records; those beyond HANDED_ON_BYTES, or beyond a turn, stay for the next call."""
    records: list[Any] = []
    if not self.has_more() or not self.check_assignment(self._topic_partition):
        return records
    size, turn = 0, Turn()
    for record in self._partition_records:
        records.append(record)
        size += max(record.serialized_key_size, 0) + max(record.serialized_value_size, 0)
        if len(records) == max_records or size >= HANDED_ON_BYTES or turn.is_over:
            self._update_position()
            return records
    self._update_position()
    self._partition_records = None
    return records


class GuardedRecords:
    """One partition's batches in a response; stands in for aiokafka's `MemoryRecords`."""

    def __init__(self, batches: bytes | None) -> None:
        self._size = len(batches or b"")
        self._batches = _split(batches or b"")
        self._next = next(self._batches, None)

    def size_in_bytes(self) -> int:
        return self._size

    def has_next(self) -> bool:
        return self._next is not None

    def next_batch(self) -> "GuardedBatch | None":
        batch, self._next = self._next, next(self._batches, None)
        return None if batch is None else GuardedBatch(batch)


class GuardedBatch:
    """A batch whose iteration never raises; otherwise it behaves like aiokafka's."""

    def __init__(self, batch: bytes) -> None:
        self._raw = batch
        self._batch = MemoryRecords(batch).next_batch()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)  # for control batches

    def __iter__(self) -> Iterator[Any]:
        last, end = self._batch.base_offset - 1, self._batch.next_offset
        try:
            for record in _records(self._raw):
                if not last < record.offset < end:
                    raise ValueError("the offsets of a batch are out of order")
                last = record.offset
                yield record
        except _UNREADABLE as error:
            if last + 1 < end:
                detail = f"offsets {last + 1} to {end - 1} cannot be read: {type(error).__name__}"
                yield _replacement(last + 1, 0, None, Replacement("undecodable_batch", detail))


class Record(NamedTuple):
    """A record with the same fields as aiokafka's."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    checksum: None = None


def _split(batches: bytes) -> Iterator[bytes]:
    """Yield the complete batches; the broker may cut off the last one."""
    at = 0
    while at + _HEADER.size <= len(batches):
        (length,) = struct.unpack_from(">i", batches, at + _LENGTH_AT)
        end = at + _OVERHEAD + length
        if not at + _OVERHEAD < end <= len(batches):
            return
        yield batches[at:end]
        at = end


def _records(batch: bytes) -> Iterator[Any]:
    """Read a batch with aiokafka's compiled code, or with ours if that is unsafe. Raises: the errors in _UNREADABLE."""
    if batch[_MAGIC_AT] != 2:  # brokers convert formats from before 2017
        yield from MemoryRecords(batch).next_batch()
        return
    with _opened(batch) as stream:
        payload = stream.read(RECORD_BYTES + 1)
    taken = 0
    if len(payload) <= RECORD_BYTES:
        header = bytearray(batch[: _HEADER.size])
        header[_ATTRIBUTES_AT] &= ~_CODEC
        struct.pack_into(">i", header, _LENGTH_AT, _HEADER.size - _OVERHEAD + len(payload))
        try:
            for record in MemoryRecords(bytes(header) + payload).next_batch():
                yield record
                taken += 1
            return
        except UnicodeDecodeError:  # a header's name is not UTF-8
            pass
    with _opened(batch) as stream:
        yield from islice(_read(batch, _Reader(stream)), taken, None)


def _opened(batch: bytes) -> Any:
    """Open a batch's records as a stream that decompresses only what is read, except for blocks of a few megabytes."""
    codec, data = batch[_ATTRIBUTES_AT] & _CODEC, batch[_HEADER.size :]
    if codec == 0:
        return io.BytesIO(data)
    if codec == 1:
        return gzip.GzipFile(fileobj=io.BytesIO(data))
    if codec == 2:
        return io.BytesIO(b"".join(map(_snappy, _framed(data) if data.startswith(_XERIAL) else (data,))))
    if codec == 3:
        return lz4.frame.LZ4FrameFile(io.BytesIO(data))
    if codec == 4:
        decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES)
        return io.BufferedReader(decompressor.stream_reader(data, read_across_frames=True), CHUNK_BYTES)
    raise ValueError("unknown compression")


def _framed(data: bytes) -> Iterator[bytes]:
    """Yield the blocks in the framing of xerial's library, which Java's clients use."""
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        if size <= 0:
            raise ValueError("a snappy block without a length")
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


def _snappy(block: bytes) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > _SNAPPY_RATIO * len(block):
        raise ValueError("a snappy block claims an impossible length")
    return bytes(cramjam.snappy.decompress_raw(block))


class _Reader:
    """Reads fields from a stream. All methods raise EOFError at its end, and ValueError for invalid data."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.position = 0

    def read(self, size: int) -> bytes:
        if size < 0:
            raise ValueError("a negative size")
        data = self._stream.read(size)
        if len(data) < size:
            raise EOFError("the batch ends inside a record")
        self.position += size
        return bytes(data)

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.read(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise ValueError("a varint of more than ten bytes")

    def field(self) -> bytes | None:
        size = self.varint()
        return None if size == -1 else self.read(size)

    def skip(self, size: int) -> Iterator[bytes]:
        """Skip bytes, yielding them in pieces."""
        while size > 0:
            piece = self.read(min(size, CHUNK_BYTES))
            size -= len(piece)
            yield piece


def _read(batch: bytes, stream: _Reader) -> Iterator[Record]:
    """Read records one by one; replace those that are too large or have a header name that is not UTF-8."""
    base, *_, attributes, _, base_time, max_time, _, _, _, count = _HEADER.unpack_from(batch)
    by_broker = bool(attributes & _APPEND_TIME)
    for _ in range(count):
        length = stream.varint()
        end = stream.position + length
        stream.read(1)
        time = base_time + stream.varint()
        offset, time = base + stream.varint(), max_time if by_broker else time
        if length > RECORD_BYTES:
            yield _too_large(stream, offset, time, end)
            continue
        rest = stream.read(end - stream.position)
        body = _Reader(io.BytesIO(rest))
        key, value = body.field(), body.field()
        headers = [(body.field() or b"", body.field()) for _ in range(body.varint())]
        if body.position != len(rest):
            raise ValueError("a record is longer than its fields")
        try:
            named = tuple((name.decode(), said) for name, said in headers)
        except UnicodeDecodeError:
            yield _replacement(offset, time, key, Replacement("invalid_header", "a header's name is not UTF-8"))
        else:
            yield Record(offset, time, int(by_broker), key, value, named)


def _too_large(stream: _Reader, offset: int, time: int, end: int) -> Record:
    """Replace a record without ever holding much of it in memory."""
    length = end - stream.position
    size = stream.varint()
    key = stream.read(size) if 0 <= size <= KEY_BYTES else None
    for _ in stream.skip(size if key is None else 0):
        pass
    size, digest, kept = max(stream.varint(), 0), hashlib.sha256(), b""
    for piece in stream.skip(size):
        digest.update(piece)
        kept = kept or piece[:KEPT_BYTES]
    for _ in stream.skip(end - stream.position):
        pass
    detail = f"{length} bytes, including a value of {size} bytes with SHA-256 {digest.hexdigest()}"
    return _replacement(offset, time, key, Replacement("too_large", detail))._replace(value=kept)


def _replacement(offset: int, time: int, key: bytes | None, why: Replacement) -> Record:
    return Record(offset, time, 0, key if key is None or len(key) <= KEY_BYTES else None, None, (why,))
