"""A counter per key on hand-written aiokafka, rocksdict and a changelog: no transactions, so a crash counts twice."""

import asyncio
from typing import Any

import orjson
from aiokafka import TopicPartition

from benchmarks.programs.by_hand import MAX_BATCH, Rows, clients
from benchmarks.programs.configuration import Configuration, from_environment


async def process(bench: Configuration, producer: Any, totals: Rows, records: list[Any]) -> None:
    for record in records:
        amount = orjson.loads(record.value)["amount"]
        totals[record.key] = b"%d" % (int(totals.get(record.key) or 0) + amount)
    changelog, partition = f"{bench.group}-totals-changelog", records[0].partition
    sent = [await producer.send(changelog, value, key, partition=partition) for key, value in totals.changes()]
    await asyncio.gather(*sent)
    totals.write()


async def main() -> None:
    bench = from_environment()
    consumer, producer = clients(bench)
    totals = {number: Rows(bench.state / str(number)) for number in range(bench.partitions)}
    async with consumer, producer:
        while True:
            for source, records in (await consumer.getmany(timeout_ms=200, max_records=MAX_BATCH)).items():
                await process(bench, producer, totals[source.partition], records)
                await consumer.commit({TopicPartition(*source): records[-1].offset + 1})


if __name__ == "__main__":
    asyncio.run(main())
