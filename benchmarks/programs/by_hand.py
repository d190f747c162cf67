"""The same rules on hand-written aiokafka, rocksdict and a changelog: no transactions, so a crash repeats work."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from rocksdict import Options, Rdict, WriteBatch

from benchmarks.programs.configuration import Configuration, from_environment
from benchmarks.programs.rules import segmenter_of

MAX_BATCH = 2000


class Rows:
    """A table of one partition: a batch's writes over RocksDB."""

    def __init__(self, path: Path) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        path.mkdir(parents=True, exist_ok=True)
        self._db = Rdict(str(path), options)
        self._changed: dict[bytes, bytes | None] = {}

    def get(self, key: bytes, /) -> bytes | None:
        if key in self._changed:
            return self._changed[key]
        found: bytes | None = self._db.get(key)
        return found

    def __setitem__(self, key: bytes, value: bytes, /) -> None:
        self._changed[key] = value

    def __delitem__(self, key: bytes, /) -> None:
        self._changed[key] = None

    def changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        return iter(self._changed.items())

    def write(self) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in self._changed.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        self._db.write(batch)
        self._changed = {}


class Partition:
    def __init__(self, bench: Configuration, number: int) -> None:
        self.tables = {name: Rows(bench.state / f"{name}-{number}") for name in ("conversations", "messages")}
        self.segmenter = segmenter_of(bench, self.tables["conversations"], self.tables["messages"])


async def process(bench: Configuration, producer: Any, partition: Partition, records: list[Any]) -> None:
    outcome = partition.segmenter.process(records, time.time_ns() // 1_000_000)
    sent = []
    for name, rows in partition.tables.items():
        changelog = f"{bench.group}-{name}-changelog"
        for row_key, row in rows.changes():
            sent.append(await producer.send(changelog, row, row_key, partition=records[0].partition))
    for topic, key, body, headers in outcome.outgoing:
        sent.append(await producer.send(topic, body, key, headers=headers))
    await asyncio.gather(*sent)
    for rows in partition.tables.values():
        rows.write()


def clients(bench: Configuration) -> tuple[Any, Any]:
    """Consumer and producer, not started yet."""
    consumer = AIOKafkaConsumer(
        bench.messages,
        bootstrap_servers=bench.bootstrap,
        group_id=bench.group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    producer = AIOKafkaProducer(bootstrap_servers=bench.bootstrap, acks="all", linger_ms=5, max_batch_size=1 << 18)
    return consumer, producer


async def main() -> None:
    bench = from_environment()
    consumer, producer = clients(bench)
    partitions = {number: Partition(bench, number) for number in range(bench.partitions)}
    async with consumer, producer:
        while True:
            for source, records in (await consumer.getmany(timeout_ms=200, max_records=MAX_BATCH)).items():
                await process(bench, producer, partitions[source.partition], records)
                await consumer.commit({TopicPartition(*source): records[-1].offset + 1})


if __name__ == "__main__":
    asyncio.run(main())
