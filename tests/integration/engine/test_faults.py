"""Workers die, stop, join, leave and freeze: nothing is lost, nothing comes twice, nothing conflicts."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import IllegalOperation, KafkaError
from aiokafka.structs import OffsetAndMetadata

from afterword.embedded.java import JarCache
from afterword.embedded.process import Process, until_ready
from afterword.embedded.stack import Broker, has_brokers
from faust_eos.changelog import Bookmark
from faust_eos.health import stalls_before
from faust_eos.kafka import Clients
from faust_eos.options import Options
from faust_eos.transaction import Output, TransactionalProducer
from tests.integration.engine.lab import ROOT, Lab, laboratory, until
from tests.stack import Stack, chosen_jars


async def test_second_producer_of_a_partition_fences_the_first(lab: Lab) -> None:
    kafka = {"bootstrap_servers": lab.brokers}
    first, second = (TransactionalProducer(lab.app_id, Clients(kafka), Options()) for _ in range(2))
    source = TopicPartition(lab.source, 0)
    await first.open(20)
    await first.commit([], {}, Bookmark(1, "", []), source, lab.app_id)
    await second.open(20)
    with pytest.raises((KafkaError, IllegalOperation, TimeoutError)):
        async with asyncio.timeout(5):  # as the engine does: aiokafka may never answer
            await first.commit(
                [Output(lab.output, b"", b"{}", partition=0)], {}, Bookmark(2, "", []), source, lab.app_id
            )
    await second.commit([], {}, Bookmark(3, "", []), source, lab.app_id)
    await lab.until_committed(3)
    assert not lab.outputs
    await first.close()
    await second.close()


@pytest.mark.nightly
async def test_producer_without_its_broker_leaves_no_tasks_or_batches(stack: Stack, tmp_path: Path) -> None:
    del stack  # its jars are what this one starts from
    kafka, before = Broker(JarCache(jars=chosen_jars()), tmp_path / "kafka"), asyncio.all_tasks()
    try:
        await start(kafka)
        await create_topic(kafka.bootstrap_servers, "out")
        writer = TransactionalProducer("writer", Clients({"bootstrap_servers": kafka.bootstrap_servers}), Options())
        await writer.open(20)
        output, progress = (
            Output("out", b"", b"x" * 1000, partition=0),
            {TopicPartition("out", 0): OffsetAndMetadata(1, "")},
        )
        await writer.commit_outputs([output], progress, "group")
        await asyncio.to_thread(kafka.process.kill)
        with pytest.raises((KafkaError, TimeoutError)):
            async with asyncio.timeout(3):
                await writer.commit_outputs([output], progress, "group")
        await writer.close()
        await asyncio.sleep(0.2)
        assert {task.get_coro().__qualname__ for task in asyncio.all_tasks() - before} == set()
    finally:
        await asyncio.to_thread(kafka.stop)


async def create_topic(brokers: str, name: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    await admin.create_topics([NewTopic(name, 1, 1)])
    await admin.close()


async def start(kafka: Broker) -> None:
    await asyncio.to_thread(kafka.start)
    await until_ready(kafka.process, lambda: has_brokers(kafka.bootstrap_servers))


async def progress(lab: Lab) -> None:
    """Wait for new outputs."""
    seen = len(lab.outputs)
    await until(lambda: len(lab.outputs) > seen + 20, watching=lab)


LIMIT_SECONDS = 6.0
WATCHED = {"watchdog_seconds": LIMIT_SECONDS}
BOUND_SECONDS = 3 * LIMIT_SECONDS + 14
"""Longest time until the stall is noticed, twice the limit at most, and the worker has failed to stop by itself."""


@asynccontextmanager
async def own_broker(directory: Path) -> AsyncIterator[Broker]:
    kafka = Broker(JarCache(jars=chosen_jars()), directory)
    try:
        await start(kafka)
        yield kafka
    finally:
        await asyncio.to_thread(kafka.stop)


@pytest.mark.nightly
async def test_worker_whose_broker_is_suspended_ends_in_time(
    stack: Stack, unique: Callable[[str], str], tmp_path: Path
) -> None:
    del stack  # its jars are what this one starts from
    async with (
        own_broker(tmp_path / "kafka") as kafka,
        laboratory(kafka.bootstrap_servers, unique("hung"), tmp_path / "lab") as lab,
    ):
        worker = lab.worker(options=WATCHED)
        async with lab.loaded():
            await progress(lab)
        kafka.process.suspend()
        try:
            code = await lab.exit_code(worker, BOUND_SECONDS)
        finally:
            kafka.process.resume()
        assert code == 1, lab.logs()
        # the event, not the last line: where the stop takes too long as well, the process ends without one.
        # A commit that was under way has stalled for longer than the brokers, and is named then
        said = re.search("no progress for 6 seconds: (.*?)[.(]", worker.log.read_text())
        assert said is not None, lab.logs()
        assert said[1].startswith(("the brokers do not answer", "nothing is committed of")), said
        lab.worker()
        await lab.all_counted()


async def test_records_the_agent_never_finishes_stop_the_worker(lab: Lab) -> None:
    await lab.produce([(0, {}), (0, {"until": "never"})])
    worker = lab.worker(at_least_once=True, options=WATCHED)
    assert await lab.exit_code(worker) == 1
    assert f"records of {lab.source}-0 are not finished" in worker.tail()
    assert stalls_before(lab.state() / f"{lab.app_id}-stalls") == 1


README = ROOT / "distributions" / "engine" / "README.md"


def example(lab: Lab) -> str:
    """Return the first block of code, with the broker and the topics of this test."""
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.S)
    assert found is not None
    names = {"127.0.0.1:9092": lab.brokers, "shop": lab.app_id, "orders": lab.source, "totals": "counts"}
    names["totals-changed"] = lab.output
    script = found[1]
    for name, ours in names.items():
        assert f'"{name}"' in script
        script = script.replace(f'"{name}"', f'"{ours}"')
    return script


@pytest.mark.nightly
async def test_example_counts_records_by_key_and_ends_on_sigterm(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(example(lab))
    environment = {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "shop.py"]
    worker = Process("shop", command, tmp_path / "shop.log", environment=environment, directory=tmp_path)
    lab.workers.append(worker)
    await lab.produce([(number % 3, {}) for number in range(9)])
    totals = {b"key-%d" % number: 3 for number in range(3)}
    await until(lambda: {seen.key: seen.value for seen in lab.outputs} == totals, watching=lab)
    await lab.stop(worker)
    assert worker.returncode == 0
