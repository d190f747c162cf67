"""Kafka consumer whose memory is bounded in bytes, and which no single record can stop.

A broker limits the *compressed* batch. aiokafka decompresses a whole batch at once, however large it becomes, and
raises in the middle of it when a header's name is not UTF-8. `BoundedConsumer` looks at every fetched batch first:

- It decompresses as a stream and hands on at most `DECODED_BYTES` of a response; the rest is fetched again.
- It replaces a record that is too large, or cannot be parsed, by a small one with the header `REPLACED`. Decoding that
  one raises what was wrong with the original, so the record is rejected at its own offset, under its own key.

A record whose offset is not in its batch's range moves a consumer past others, and brokers check that only in batches
that are compressed; the rest of such a batch is replaced, too.

Batches that are in order, and neither compressed nor large, pass untouched. Format: Kafka protocol guide, record
batch v2.
"""

import asyncio
import hashlib
import struct
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import cramjam
import lz4.frame
import zstandard
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CorruptRecordException
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.util import calc_crc32c

from afterword.schemas.replacements import replacement_header

DECODED_BYTES = 16 * 2**20
"""Limit for one response, all partitions together; at least one record is handed on."""
RECORD_BYTES = 2 * 2**20
"""More than any record that is accepted: what is replaced would have been rejected anyway."""
KEPT_BYTES = 64 * 2**10
"""Bytes kept of the value of a record that is too large."""
KEY_BYTES = 4096
CHUNK_BYTES = 256 * 2**10

_HEADER = struct.Struct(">qiibIhiqqqhii")
_OVERHEAD = 12
"""Bytes before those that a batch's length counts: base offset and length."""
_MAGIC_AT, _CRC_AT, _CHECKED_FROM, _RECORDS_FROM = 16, 17, 21, _HEADER.size
_LAST_DELTA_BYTES = slice(23, 27)
_LENGTH, _CRC, _ATTRIBUTES, _LAST_DELTA, _COUNT = 1, 4, 5, 6, 12
_CODEC, _CONTROL = 0x07, 0x20
_SNAPPY_RATIO = 32
"""A snappy block does not become longer than this times its size: three bytes copy 64 at most."""
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_UNREADABLE = (
    ValueError,
    IndexError,
    EOFError,
    RuntimeError,  # lz4's
    struct.error,
    zlib.error,
    zstandard.ZstdError,
    cramjam.DecompressionError,
)


class Bounded(NamedTuple):
    """Batches that are safe to parse."""

    batches: bytes
    found_names: bool
    """Some header names were not UTF-8."""


def is_safe(batches: bytes) -> bool:
    """Nothing in it is compressed, larger than a record may be, or out of order."""
    return not any(_is_suspect(batch) for batch in _split(batches))


def bounded(batches: bytes, fetch_offset: int, limit: int = DECODED_BYTES, *, check_names: bool = False) -> Bounded:
    """Decompress the batches of one partition up to `limit` bytes.

    Leaves out records before `fetch_offset`, and batches that do not fit; at least one record is handed on.
    `check_names`: parse every record, and replace those with header names that are not UTF-8.
    """
    out: list[bytes | memoryview] = []
    left, found_names = limit, False
    for batch in _split(batches):
        if left <= 0:
            break
        if not _is_suspect(batch, check_names) or not _is_intact(batch):
            out.append(batch)  # aiokafka reports a wrong checksum, and the batch is fetched again
            left -= len(batch)
            continue
        rewritten = _Rewriting(batch, fetch_offset, left, check_names)
        out.append(rewritten.batch)
        found_names |= rewritten.found_names
        left = left - len(rewritten.batch) if rewritten.complete else 0
    return Bounded(b"".join(out) or batches, found_names)  # aiokafka reports an incomplete batch alone, too


def _split(batches: bytes) -> Iterator[memoryview]:
    """Complete batches; the broker may cut off the last one."""
    view, at = memoryview(batches), 0
    while at + _HEADER.size <= len(view):
        end = at + _OVERHEAD + int.from_bytes(view[at + 8 : at + _OVERHEAD], signed=True)
        if not at + _OVERHEAD < end <= len(view):
            return
        yield view[at:end]
        at = end


def _is_suspect(batch: memoryview, check_names: bool = False) -> bool:
    if len(batch) < _HEADER.size or batch[_MAGIC_AT] != 2:  # brokers convert the formats before 2017
        return False
    attributes = int.from_bytes(batch[21:23])
    if attributes & _CONTROL:
        return False
    if check_names or attributes & _CODEC or len(batch) > RECORD_BYTES:
        return True
    return not _is_in_order(batch[_RECORDS_FROM:], int.from_bytes(batch[_LAST_DELTA_BYTES], signed=True))


def _is_in_order(records: bytes | memoryview, last: int) -> bool:
    """Return whether the offset deltas of uncompressed records increase, up to `last` at most: 0.6 µs a record."""
    at, end, before = 0, len(records), -1
    try:
        while at < end:
            length, at = _varint_at(records, at)
            _, times = _varint_at(records, at + 1)  # after the attributes
            delta, _ = _varint_at(records, times)
            if length < 0 or not before < delta <= last:
                return False
            before, at = delta, at + length
    except (IndexError, ValueError):
        return False
    return True


def _varint_at(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number, and where the next one begins. Raises: IndexError, ValueError for more than ten bytes."""
    value = data[at]
    if value < 0x80:
        return (value >> 1) ^ -(value & 1), at + 1
    value &= 0x7F
    for shift in range(7, 70, 7):
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
    raise ValueError("varint of more than ten bytes")


def _is_intact(batch: memoryview) -> bool:
    return bool(calc_crc32c(batch[_CHECKED_FROM:]) == _HEADER.unpack_from(batch)[_CRC])


class _Rewriting:
    """One batch rebuilt, uncompressed. `complete`: it has all records of the original."""

    def __init__(self, batch: memoryview, fetch_offset: int, limit: int, check_names: bool) -> None:
        self._fields = list(_HEADER.unpack_from(batch))
        self._first = max(fetch_offset - self._fields[0], 0)
        self._limit = limit
        self._check_names = check_names
        self._records: list[bytes] = []
        self._delta = -1
        """Offset delta of the last record that was looked at."""
        self.complete = True
        self.found_names = False
        self.batch = self._rewrite(batch[_RECORDS_FROM:])

    def _rewrite(self, data: memoryview) -> bytes:
        stream = _Stream(_decompressed(data, self._fields[_ATTRIBUTES] & _CODEC))
        try:
            whole = None if self._check_names else stream.whole(min(RECORD_BYTES, self._limit))
            if whole is not None and _is_in_order(whole, self._fields[_LAST_DELTA]):
                return self._uncompressed(whole, self._fields[_COUNT], self._fields[_LAST_DELTA])
            for _ in range(self._fields[_COUNT]):
                if not self._take(stream):
                    self.complete = False
                    break
        except _UNREADABLE as error:
            self._replace_rest(error)
        last = self._fields[_LAST_DELTA] if self.complete else self._delta
        return self._uncompressed(b"".join(self._records), len(self._records), last)

    def _take(self, stream: "_Stream") -> bool:
        """Copy the next record; False when it does not fit any more."""
        length = stream.varint()
        if length < 0:
            raise ValueError("negative length")
        end = stream.position + length
        timestamp, delta = _times(stream)
        if not self._delta < delta <= self._fields[_LAST_DELTA]:
            raise ValueError("offsets out of order")
        if delta < self._first:
            stream.skip(end - stream.position)
        else:
            if self._records and min(length, RECORD_BYTES) > self._limit:
                return False
            body = self._body(stream, timestamp, delta, end)
            self._limit -= len(body)
            self._records.append(_varint(len(body)) + body)
        self._delta = delta
        return True

    def _body(self, stream: "_Stream", timestamp: int, delta: int, end: int) -> bytes:
        """The record whose rest the stream is at, or what replaces it."""
        if end - stream.position > RECORD_BYTES:
            return _cut_short(stream, timestamp, delta, end)
        rest = stream.read(end - stream.position)
        if self._check_names and not _has_names_in_utf8(rest):
            self.found_names = True
            key = _Stream((rest,)).field(KEY_BYTES)
            return _replacement(timestamp, delta, key, None, replacement_header("invalid_header"))
        return b"\0" + _varint(timestamp) + _varint(delta) + rest

    def _replace_rest(self, error: Exception) -> None:
        """One record for all that follows in a batch that cannot be read on; none where no offset is left."""
        delta, last = max(self._delta + 1, self._first), self._fields[_LAST_DELTA]
        if delta > last:
            return
        base, cause = self._fields[0], type(error).__name__
        said = replacement_header("undecodable_batch", first=base + delta, last=base + last, cause=cause)
        body = _replacement(0, delta, None, None, said)
        self._records.append(_varint(len(body)) + body)

    def _uncompressed(self, records: bytes, count: int, last_delta: int) -> bytes:
        fields = self._fields.copy()
        fields[_LENGTH] = _RECORDS_FROM - _OVERHEAD + len(records)
        fields[_ATTRIBUTES] &= ~_CODEC
        fields[_LAST_DELTA], fields[_COUNT] = last_delta, count
        batch = bytearray(_HEADER.pack(*fields)) + records
        struct.pack_into(">I", batch, _CRC_AT, calc_crc32c(memoryview(batch)[_CHECKED_FROM:]))
        return bytes(batch)


def _times(stream: "_Stream") -> tuple[int, int]:
    """Timestamp delta and offset delta, with which a record begins."""
    stream.read(1)
    return stream.varint(), stream.varint()


def _cut_short(stream: "_Stream", timestamp: int, delta: int, end: int) -> bytes:
    """Replacement of a record that is too large, little of which is ever in memory."""
    length = end - stream.position
    key = stream.field(KEY_BYTES)
    digest = hashlib.sha256()
    size = max(stream.varint(), 0)
    kept = stream.skip(size, KEPT_BYTES, digest.update)
    stream.skip(end - stream.position)
    said = replacement_header("too_large", bytes=length, value_bytes=size, value_sha256=digest.hexdigest())
    return _replacement(timestamp, delta, key, kept, said)


def _has_names_in_utf8(rest: bytes) -> bool:
    """`rest`: of a record, from its key on. Raises: what is in `_UNREADABLE`."""
    stream = _Stream((rest,))
    stream.field(0)
    stream.field(0)
    names = list(stream.names())
    if stream.position != len(rest):
        raise ValueError("the record is longer than its fields")
    return all(_is_utf8(name) for name in names)


def _replacement(
    timestamp: int, delta: int, key: bytes | None, value: bytes | None, header: tuple[str, bytes]
) -> bytes:
    name, said = header
    fields = (key, value), (name.encode(), said)
    before, after = (b"".join(map(_bytes, pair)) for pair in fields)
    return b"\0" + _varint(timestamp) + _varint(delta) + before + _varint(1) + after


def _bytes(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Zigzag and base 128, as in Protocol Buffers."""
    left = (value << 1) ^ (value >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Stream:
    """Bytes that come in chunks, of which only those of the current record are kept."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._buffer = bytearray()
        self._at = 0
        self._dropped = 0

    @property
    def position(self) -> int:
        return self._dropped + self._at

    def whole(self, limit: int) -> bytes | None:
        """All of it, when that is `limit` bytes at most; changes nothing otherwise."""
        while len(self._buffer) <= limit:
            if not self._more():
                return bytes(self._buffer)
        return None

    def read(self, size: int) -> bytes:
        """Raises: EOFError, ValueError for a negative size."""
        if size < 0:
            raise ValueError("negative size")
        while len(self._buffer) - self._at < size:
            if not self._more():
                raise EOFError("the batch ends inside a record")
        self._at += size
        return bytes(memoryview(self._buffer)[self._at - size : self._at])

    def skip(self, size: int, keep: int = 0, see: Callable[[bytes], object] | None = None) -> bytes:
        """Pass over `size` bytes, show each piece to `see`, and return the first `keep`. Raises: EOFError."""
        kept = b""
        while size > 0:
            have = min(size, len(self._buffer) - self._at)
            if see or len(kept) < keep:
                piece = bytes(self._buffer[self._at : self._at + have])
                kept += piece[: keep - len(kept)]
                if see:
                    see(piece)
            self._at += have
            size -= have
            if size and not self._more():
                raise EOFError("the batch ends inside a record")
        return kept

    def varint(self) -> int:
        """Raises: EOFError, ValueError for more than ten bytes."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.read(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise ValueError("varint of more than ten bytes")

    def field(self, keep: int) -> bytes | None:
        """A length and so many bytes; None for a null, and for one of more than `keep` bytes.

        Raises: EOFError, ValueError for a length that is negative, −1 for a null aside.
        """
        size = self.varint()
        if size == -1:
            return None
        if size < 0:
            raise ValueError("negative length")
        kept = self.skip(size, keep)
        return kept if size <= keep else None

    def names(self) -> Iterator[bytes]:
        """Names of a record's headers. Raises: EOFError, ValueError for a negative number of them."""
        number = self.varint()
        if number < 0:
            raise ValueError("negative number of headers")
        for _ in range(number):
            yield self.read(self.varint())
            self.field(0)

    def _more(self) -> bool:
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        if self._at:
            self._dropped += self._at
            del self._buffer[: self._at]  # of a bytearray's head: moves no byte
            self._at = 0
        self._buffer += chunk
        return True


def _decompressed(data: memoryview, codec: int) -> Iterator[bytes]:
    """Chunks of bounded size. Raises: what is in `_UNREADABLE`."""
    return (_plain, _gzip, _snappy, _lz4, _zstd, _unknown, _unknown, _unknown)[codec](data)


def _plain(data: memoryview) -> Iterator[bytes]:
    for at in range(0, len(data), CHUNK_BYTES):
        yield bytes(data[at : at + CHUNK_BYTES])


def _gzip(data: memoryview) -> Iterator[bytes]:
    left = bytes(data)
    while left:  # members follow each other
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            chunk = member.decompress(left, CHUNK_BYTES)
            if not chunk and not member.eof and not member.unconsumed_tail:
                raise EOFError("gzip ends too early")
            left = member.unconsumed_tail
            if chunk:
                yield chunk
        left = member.unused_data


def _lz4(data: memoryview) -> Iterator[bytes]:
    left = bytes(data)
    while left:  # frames follow each other
        frame = lz4.frame.LZ4FrameDecompressor()
        while not frame.eof:
            chunk = frame.decompress(left, CHUNK_BYTES)
            if not chunk and frame.needs_input:
                raise EOFError("lz4 ends too early")
            left = b""
            if chunk:
                yield chunk
        left = frame.unused_data or b""


def _zstd(data: memoryview) -> Iterator[bytes]:
    with zstandard.ZstdDecompressor().stream_reader(bytes(data), read_across_frames=True) as reader:
        while chunk := reader.read(CHUNK_BYTES):
            yield chunk


def _snappy(data: memoryview) -> Iterator[bytes]:
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        yield _snappy_block(data)
        return
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], signed=True)
        if size <= 0:
            raise ValueError("snappy block without a length")
        yield _snappy_block(data[at + 4 : at + 4 + size])
        at += 4 + size


def _snappy_block(block: memoryview) -> bytes:
    length, shift = 0, 0
    for byte in bytes(block[:5]):
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if length > _SNAPPY_RATIO * len(block):
        raise ValueError("snappy block claims an impossible length")
    return bytes(cramjam.snappy.decompress_raw(bytes(block)))


def _unknown(_: memoryview) -> Iterator[bytes]:
    raise ValueError("unknown compression")


UNPARSABLE = (ValueError, CorruptRecordException)
"""Errors of aiokafka in the middle of a batch, such as for a name that is not UTF-8 or an endless varint.

A wrong checksum is one, and is raised again after `MOST_ATTEMPTS`."""


MOST_ATTEMPTS = 20
RETRY_SECONDS = 0.05


class BoundedConsumer(AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka is not typed
    """An `AIOKafkaConsumer` that no batch can make grow, block the event loop, or raise for good."""

    def __init__(self, *topics: str, **options: Any) -> None:
        super().__init__(*topics, **options)
        self._suspicious: set[TopicPartition] = set()
        """Partitions with a recent bad header name: only their records are all parsed here, which is slow."""
        self._send = self._client.send
        self._client.send = self._send_bounded  # where aiokafka has no seam: it is pinned exactly

    async def getmany(self, *partitions: TopicPartition, **options: Any) -> dict[TopicPartition, list[Any]]:
        """Fetch as aiokafka does. Raises: KafkaError; for the content of a record only if no attempt could parse it."""
        call = partial(super().getmany, *partitions, **options)
        return await self._parsed(call, partitions)  # type: ignore[no-any-return]

    async def getone(self, *partitions: TopicPartition) -> Any:
        """Fetch as aiokafka does. Raises: KafkaError, as `getmany` does."""
        return await self._parsed(partial(super().getone, *partitions), partitions)

    async def _parsed(self, call: Callable[[], Awaitable[Any]], partitions: Collection[TopicPartition]) -> Any:
        for _ in range(MOST_ATTEMPTS):
            positions = self._positions(partitions)
            try:
                return await call()
            except UNPARSABLE:
                await self._fetch_again(positions)
        try:
            return await call()
        except ValueError as error:
            raise CorruptRecordException("a batch cannot be parsed") from error

    def _positions(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Positions of these partitions, or of all: only of those may a call take records."""
        subscription = self._subscription.subscription
        assignment = subscription.assignment if subscription else None
        if assignment is None:
            return {}
        states = ((tp, assignment.state_value(tp)) for tp in partitions or assignment.tps)
        return {tp: state.position for tp, state in states if state is not None and state.has_valid_position}

    async def _fetch_again(self, positions: dict[TopicPartition, int]) -> None:
        """Go back to where the call began, so that no record is passed over, and parse each one from there."""
        for tp in positions.keys() & self.assignment():
            self.seek(tp, positions[tp])
        self._suspicious |= positions.keys()
        # a response that was under way is still unparsed, and may arrive first
        await asyncio.sleep(RETRY_SECONDS)

    async def _send_bounded(self, node_id: int, request: Any, **options: Any) -> Any:
        response = await self._send(node_id, request, **options)
        if isinstance(request, FetchRequest):
            offsets = {(topic, partition): at for topic, parts in request.topics for partition, at, _ in parts}
            left = DECODED_BYTES
            for topic, parts in response.topics:
                for number, (partition, *rest, batches) in enumerate(parts):
                    safe = await self._bounded(
                        TopicPartition(topic, partition), batches, offsets[topic, partition], left
                    )
                    left -= len(safe)
                    parts[number] = (partition, *rest, safe)
        return response

    async def _bounded(self, tp: TopicPartition, batches: bytes | None, offset: int, limit: int) -> bytes:
        """Nothing when the limit is used up: those records are fetched again."""
        if not batches or (tp not in self._suspicious and is_safe(batches)):
            return batches or b""
        if limit <= 0:
            return b""
        check_names = tp in self._suspicious
        # in a thread: decompressing lets go of the interpreter's lock
        safe, found_names = await asyncio.to_thread(bounded, batches, offset, limit, check_names=check_names)
        if check_names and not found_names:
            self._suspicious.discard(tp)
        return safe
