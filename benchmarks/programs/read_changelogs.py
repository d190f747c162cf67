"""Speed of reading changelogs from the broker, by an aiokafka consumer that does nothing with the records.

python -m benchmarks.programs.read_changelogs BOOTSTRAP PARTITIONS TOPIC… → records, seconds, CPU seconds as JSON.
"""

import asyncio
import json
import sys
import time

from aiokafka import AIOKafkaConsumer, TopicPartition


async def read(bootstrap: str, sources: list[TopicPartition]) -> dict[str, float]:
    """All that was committed, from the beginning; fetched as recovery fetches."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
        max_partition_fetch_bytes=1 << 20,
    )
    async with consumer:
        began, cpu, records = time.monotonic(), time.process_time(), 0
        consumer.assign(sources)
        ends = await consumer.end_offsets(sources)
        while any([await consumer.position(source) < ends[source] for source in sources]):
            records += sum(map(len, (await consumer.getmany(timeout_ms=200)).values()))
        return {"records": records, "seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu}


def main() -> None:
    bootstrap, partitions, *topics = sys.argv[1:]
    sources = [TopicPartition(topic, number) for topic in topics for number in range(int(partitions))]
    print(json.dumps(asyncio.run(read(bootstrap, sources))))


if __name__ == "__main__":
    main()
