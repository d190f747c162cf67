"""Record batches in Kafka's format, byte by byte, including some that aiokafka would not make."""

import gzip
import struct
from collections.abc import Callable, Sequence
from functools import partial

import cramjam
import lz4.frame
import zstandard
from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import NotLeaderForPartitionError, for_code
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "lz4": partial(lz4.frame.compress, block_linked=False),  # as Kafka's brokers demand
    "zstd": zstandard.compress,
    "snappy": lambda data: bytes(cramjam.snappy.compress_raw(data)),
    "none": bytes,
}


def batch(records: Sequence[tuple[bytes | None, bytes | None, list]], codec: str = "none", base: int = 100) -> bytes:
    builder = DefaultRecordBatchBuilder(2, CODECS[codec], True, 77, 3, 5, 2**31 - 1)
    for offset, (key, value, headers) in enumerate(records):
        assert builder.append(offset, 1_700_000_000_000 + offset, key, value, headers)
    made = bytearray(builder.build())
    struct.pack_into(">q", made, 0, base)  # not covered by the checksum
    return bytes(made)


def packed(payload: bytes, codec: str, count: int, compress: Callable[[bytes], bytes], base: int = 100) -> bytes:
    """Build a batch of records that aiokafka's builder would not make."""
    empty = bytearray(batch([(b"k", b"v", [])], base=base)[:61])
    body = compress(payload)
    struct.pack_into(">i", empty, 8, 61 - 12 + len(body))
    struct.pack_into(">hi", empty, 21, CODECS[codec], count - 1)
    struct.pack_into(">qhii", empty, 43, -1, -1, -1, count)
    made = empty + body
    struct.pack_into(">I", made, 17, calc_crc32c(bytes(made[21:])))
    return bytes(made)


def varint(value: int) -> bytes:
    value, out = (value << 1) ^ (value >> 63), bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(value: bytes) -> bytes:
    return varint(len(value)) + value


def record(delta: int, key: bytes, value: bytes, names: Sequence[bytes] = (), timestamp: int = 0) -> bytes:
    headers = b"".join(field(name) + field(b"x") for name in names)
    body = b"\0" + varint(timestamp) + varint(delta) + field(key) + field(value) + varint(len(names)) + headers
    return varint(len(body)) + body


async def produce(servers: str, topic: str, partition: int, *batches: bytes) -> list[int]:
    """Send batches to the broker unchanged; return the offset of each. Raises: KafkaError, if it rejects one."""
    offsets = []
    client = AIOKafkaClient(bootstrap_servers=servers)
    await client.bootstrap()
    try:
        client.add_topic(topic)
        for batch in batches:
            request, code = (
                ProduceRequest(None, -1, 20_000, [(topic, [(partition, batch)])]),
                NotLeaderForPartitionError.errno,
            )
            while code == NotLeaderForPartitionError.errno:  # just after the topic was created
                await client.force_metadata_update()
                leader = client.cluster.leader_for_partition(TopicPartition(topic, partition))
                [(_, [(_, code, offset, *_)])] = (await client.send(leader, request)).topics
            if code:
                raise for_code(code)(f"{topic}-{partition}")
            offsets.append(offset)
    finally:
        await client.close()
    return offsets
