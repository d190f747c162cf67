"""What one transaction of the engine costs on the embedded broker, whatever is in it: time of the core, and waiting."""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from afterword.embedded import EmbeddedStack
from afterword.streams.runtime.batch import Output
from afterword.streams.runtime.bookmark import Bookmark
from afterword.streams.runtime.clients import Clients
from afterword.streams.runtime.options import Options
from afterword.streams.runtime.transaction import TransactionalProducer

COUNT = 400
WARM_UP = 50
GROUP = "simulation"
SOURCE, EPISODES = TopicPartition("source", 0), TopicPartition("episodes", 0)
CHANGELOGS = (TopicPartition("first-changelog", 0), TopicPartition("second-changelog", 0))


async def transactions() -> dict[str, float]:
    """By the names of `Parameters`; seconds. Each transaction has one output, a row in each of two changelogs."""
    with tempfile.TemporaryDirectory(prefix="afterword-simulation-") as directory:
        async with EmbeddedStack(Path(directory) / "stack") as stack:
            await _create(stack.bootstrap_servers)
            seconds, core = await _commits(stack.bootstrap_servers)
    waits = [whole - busy for whole, busy in zip(seconds, core, strict=True)]
    return {
        "transaction_core_seconds": statistics.fmean(core),
        "commit_seconds": statistics.median(waits),
        "commit_p99_seconds": float(np.quantile(waits, 0.99)),
    }


async def _create(bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(place.topic, 1, 1) for place in (SOURCE, EPISODES, *CHANGELOGS)])
    finally:
        await admin.close()


async def _commits(bootstrap: str) -> tuple[list[float], list[float]]:
    """Seconds of the clock and of the processor, for each."""
    producer = TransactionalProducer("simulation", Clients({"bootstrap_servers": bootstrap}), Options())
    await producer.open(60.0)
    try:
        found = [await _commit(producer, number) for number in range(WARM_UP + COUNT)]
    finally:
        await producer.close()
    return [whole for whole, _ in found[WARM_UP:]], [core for _, core in found[WARM_UP:]]


async def _commit(producer: TransactionalProducer, number: int) -> tuple[float, float]:
    began, core = time.perf_counter(), time.process_time()
    output = Output(EPISODES.topic, b"key", b"x" * 1000, None, None, [])
    rows = {place: [(b"key", b"x" * 300)] for place in CHANGELOGS}
    bookmark = Bookmark(number, "lineage", [place.topic for place in CHANGELOGS])
    await producer.commit([output], rows, bookmark, SOURCE, GROUP)
    return time.perf_counter() - began, time.process_time() - core


if __name__ == "__main__":
    for name, value in asyncio.run(transactions()).items():
        print(f"{name} {value:.5f}")
