"""Workers die, stop, join, leave and freeze: nothing is lost, nothing comes twice, nothing conflicts."""

import asyncio
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import IllegalOperation, KafkaError
from aiokafka.structs import OffsetAndMetadata

from afterword.embedded.java import JarCache
from afterword.embedded.process import until_ready
from afterword.embedded.stack import Broker, has_brokers
from faust_eos.changelog import Bookmark
from faust_eos.kafka import Clients
from faust_eos.options import Options
from faust_eos.transaction import Output, TransactionalProducer
from tests.integration.engine.lab import Lab, until
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
