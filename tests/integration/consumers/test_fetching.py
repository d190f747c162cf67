"""Records that a real broker accepts and aiokafka cannot read, read by our consumer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zstandard
from aiokafka import AIOKafkaConsumer, TopicPartition

from afterword.schemas.records import REPLACED
from afterword.streams.kafka.fetching import BoundedConsumer
from afterword.streams.settings import Settings
from tests import raw_batches
from tests.raw_batches import COMPRESSORS, packed, record

WAIT_MS = 120_000


@asynccontextmanager
async def consuming(settings: Settings, kind: type[AIOKafkaConsumer] = BoundedConsumer) -> AsyncIterator[Any]:
    kafka = settings.kafka
    consumer = kind(
        kafka.messages_topic,
        bootstrap_servers=kafka.bootstrap_servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def records(consumer: BoundedConsumer, number: int, **options: Any) -> list[Any]:
    found: list[Any] = []
    while len(found) < number:
        got = await consumer.getmany(timeout_ms=WAIT_MS, **options)
        assert got
        found += [one for some in got.values() for one in some]
    return found


def of_partition(found: list[Any], partition: int) -> list[Any]:
    return [one for one in found if one.partition == partition]


async def produce(settings: Settings, partition: int, *batches: bytes) -> None:
    await raw_batches.produce(settings.kafka.bootstrap_servers, settings.kafka.messages_topic, partition, *batches)


def named(number: int, names: list[bytes], codec: str = "none") -> bytes:
    """Return three records, the second with headers of these names."""
    payload = record(0, b"a", b"%d" % number) + record(1, b"b", b"bad", names) + record(2, b"c", b"%d" % (number + 1))
    return packed(payload, codec, 3, COMPRESSORS[codec], base=0)


@pytest.mark.parametrize("codec", COMPRESSORS)
async def test_header_name_outside_utf8_costs_one_record_only(settings: Settings, codec: str) -> None:
    await produce(settings, 0, named(1, [b"ok"], codec), named(3, [b"\xff"], codec), named(5, [b"ok"], codec))
    await produce(settings, 1, named(7, [b"ok"], codec), named(9, [b"\xfe\xff"], codec))
    async with consuming(settings) as consumer:
        found = await records(consumer, 15, max_records=4)
    for partition, number, bad in ((0, 9, 4), (1, 6, 4)):
        here = of_partition(found, partition)
        assert [one.offset for one in here] == list(range(number))
        assert [one.offset for one in here if one.headers and one.headers[0][0] == REPLACED] == [bad]
        assert here[bad].key == b"b"


async def test_partitions_are_fetched_separately_without_loss(settings: Settings) -> None:
    await produce(settings, 0, named(1, [b"\xff"]), named(3, [b"ok"]))
    await produce(settings, 1, named(5, [b"ok"]), named(7, [b"\xff"]))
    async with consuming(settings) as consumer:
        found: list[Any] = []
        while len(found) < 12:
            for partition in (0, 1):
                tp = TopicPartition(settings.kafka.messages_topic, partition)
                got = await consumer.getmany(tp, timeout_ms=500, max_records=2)
                found += got.get(tp, [])
    assert [one.offset for one in of_partition(found, 0)] == list(range(6))
    assert [one.offset for one in of_partition(found, 1)] == list(range(6))


async def test_records_follow_one_by_one_past_a_bad_one(settings: Settings) -> None:
    await produce(settings, 0, named(1, [b"\xff"]))
    async with consuming(settings) as consumer:
        found = [await consumer.getone() for _ in range(3)]
    assert [one.key for one in found] == [b"a", b"b", b"c"]


async def test_consumer_with_committed_offsets_continues(settings: Settings) -> None:
    await produce(settings, 0, named(1, [b"ok"]))
    async with consuming(settings, AIOKafkaConsumer) as before:
        found = await records(before, 2, max_records=2)  # it has one more in hand
        async with consuming(settings) as consumer:
            assert len(await records(consumer, 3)) == 3
        found += await records(before, 1)
    assert [one.offset for one in found] == [0, 1, 2]


async def test_half_a_gigabyte_in_two_batches_leaves_memory_unchanged(settings: Settings) -> None:
    value = b"x" * 600_000
    stream = zstandard.ZstdCompressor().compressobj()
    small = b"".join(stream.compress(record(delta, b"key", value)) for delta in range(400)) + stream.flush()
    await produce(settings, 0, packed(b"", "zstd", 400, lambda _: small, base=0))
    huge = packed(record(0, b"k", bytes(2**28)) + record(1, b"k", b"after"), "zstd", 2, COMPRESSORS["zstd"], base=0)
    await produce(settings, 0, huge)
    before = peak_bytes(anew=True)
    offsets: list[int] = []
    async with consuming(settings) as consumer:
        while len(offsets) < 402:
            for some in (await consumer.getmany(timeout_ms=WAIT_MS)).values():
                offsets += [one.offset for one in some]
                last = some[-1].value
            some = []
    assert offsets == list(range(402))
    assert last == b"after"
    # 130 MiB in a process of its own, and 240 once in one that ran other tests; aiokafka holds the larger record twice
    assert peak_bytes() - before < 400 * 2**20


def peak_bytes(*, anew: bool = False) -> int:
    """Return the peak of this process's resident memory since the last reset (proc(5), clear_refs)."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    [found] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(found.split()[1]) * 1024


async def test_replaced_record_describes_the_original(settings: Settings) -> None:
    huge = packed(record(0, b"k", b"x" * 3_000_000), "gzip", 1, COMPRESSORS["gzip"], base=0)
    await produce(settings, 0, huge)
    async with consuming(settings) as consumer:
        [one] = await records(consumer, 1)
    assert one.key == b"k"
    assert len(one.value) < 100_000
    assert one.headers[0].error_type == "too_large"
