"""The embedded stack keeps what it acknowledged, through restarts and kills, and leaves nothing running."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from pathlib import Path

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

from afterword.embedded import DirectoryInUse, EmbeddedStack, ProcessExited
from afterword.embedded.process import until_ready
from afterword.streams.kafka.clients import admin_client
from afterword.streams.settings import Kafka
from faust_eos.kafka import committed_offsets
from tests.processes import alive, until


@pytest_asyncio.fixture(scope="module")
async def own_stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedStack]:
    """Separate from the shared stack, because these tests break it and repair it."""
    async with EmbeddedStack(tmp_path_factory.mktemp("own") / "stack") as stack:
        yield stack


@pytest.fixture
def topic(unique: Callable[[str], str]) -> str:
    return unique("events")


async def test_second_start_finds_topics_and_offsets(tmp_path: Path, topic: str) -> None:
    directory = tmp_path / "stack"
    async with EmbeddedStack(directory) as first:
        await create_topic(first, topic)
        await produce(first, topic, range(10))
        assert await consume(first, topic, 10) == list(range(10))
        environment = first.environment()
    async with EmbeddedStack(directory) as second:
        assert second.environment() == environment
        await produce(second, topic, range(10, 20))
        assert await consume(second, topic, 10) == list(range(10, 20))  # and not the first ten again


FEATURES = CompactArray(("name", CompactString("utf-8")), ("highest", Int16), ("lowest", Int16), ("tags", TaggedFields))
API_KEYS = CompactArray(("key", Int16), ("lowest", Int16), ("highest", Int16), ("tags", TaggedFields))
API_VERSIONS = Schema(
    ("correlation", Int32), ("error", Int16), ("apis", API_KEYS), ("throttle", Int32), ("tags", TaggedFields)
)
FINALIZED = 2
"""Tag of the finalized features in the answer."""


async def test_new_broker_has_the_releases_default_feature_levels(own_stack: EmbeddedStack) -> None:
    command = own_stack.kafka.command("kafka.tools.StorageTool", "version-mapping")
    listed = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    defaults = dict(re.findall(r"^(\S+\.version)=(\d+)", listed.stdout, re.MULTILINE))
    del defaults["kraft.version"]  # that of the quorum, which is not dynamic here
    levels = await feature_levels(own_stack.bootstrap_servers)
    assert levels == {name: int(level) for name, level in defaults.items()}
    assert levels["transaction.version"] == 2


async def feature_levels(bootstrap_server: str) -> dict[str, int]:
    """Ask the broker with version 3 of ApiVersions, which aiokafka lacks."""
    reader, writer = await asyncio.open_connection(*bootstrap_server.split(":"))
    header = Int16.encode(18) + Int16.encode(3) + Int32.encode(1) + Int16.encode(-1) + TaggedFields.encode({})
    body = 2 * CompactString("utf-8").encode("test") + TaggedFields.encode({})
    writer.write(Int32.encode(len(header + body)) + header + body)
    answer = BytesIO(await reader.readexactly(Int32.decode(BytesIO(await reader.readexactly(4)))))
    writer.close()
    *_, tags = API_VERSIONS.decode(answer)
    return {name: highest for name, highest, *_ in FEATURES.decode(BytesIO(tags[FINALIZED]))}


@pytest.mark.nightly
async def test_directory_in_use_is_refused_and_its_owner_continues(own_stack: EmbeddedStack, topic: str) -> None:
    with pytest.raises(DirectoryInUse, match="in use by a running stack"):
        await EmbeddedStack(own_stack.directory).start()
    await create_topic(own_stack, topic)
    await produce(own_stack, topic, range(1))
    assert await consume(own_stack, topic, 1) == [0]


@pytest.mark.nightly
async def test_server_that_dies_during_its_start_says_why(own_stack: EmbeddedStack) -> None:
    async def never() -> None:
        raise OSError("nobody there")

    process = own_stack.kafka.process
    waiting = asyncio.create_task(until_ready(process, never))
    own_stack.kafka.process.kill()
    with pytest.raises(ProcessExited, match="kafka exited with -9"):
        await waiting
    await own_stack.start_kafka()


def test_killed_parent_leaves_no_server_and_a_free_directory(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from afterword.embedded import EmbeddedStack

async def main():
    stack = EmbeddedStack(Path(sys.argv[1]))
    await stack.start()
    print(stack.kafka.process.pid, flush=True)
    await asyncio.sleep(300)

asyncio.run(main())
"""
    command = [sys.executable, "-c", script, str(tmp_path / "stack")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        servers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(servers) == 1
        assert all(map(alive, servers))
        parent.kill()
    until(lambda: not any(map(alive, servers)))

    async def again() -> None:
        async with EmbeddedStack(tmp_path / "stack"):
            pass

    asyncio.run(again())


@pytest.mark.nightly
async def test_restarted_broker_knows_all_committed_offsets(own_stack: EmbeddedStack, topic: str) -> None:
    """Its coordinator may still be reading, by chance: `distributions/engine/tests/test_transaction.py` has that."""
    await create_topic(own_stack, topic)
    await produce(own_stack, topic, range(10))
    await consume(own_stack, topic, 10)
    own_stack.kafka.process.kill()
    await own_stack.start_kafka()
    async with admin_client(Kafka(bootstrap_servers=own_stack.bootstrap_servers)) as admin:
        found = await committed_offsets(admin, f"{topic}-readers")
        assert await committed_offsets(admin, f"{topic}-others") == {}
    assert [(source.topic, offset.offset) for source, offset in found.items()] == [(topic, 10)]


async def create_topic(stack: EmbeddedStack, topic: str, replication_factor: int = 1) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=stack.bootstrap_servers)
    await admin.start()
    try:
        response = await admin.create_topics([NewTopic(topic, 1, replication_factor)])
        assert [code for _, code, _ in response.topic_errors] == [0]
    finally:
        await admin.close()


async def produce(stack: EmbeddedStack, topic: str, numbers: range) -> None:
    """Produce, and return once all required replicas have acknowledged every record."""
    async with AIOKafkaProducer(bootstrap_servers=stack.bootstrap_servers, enable_idempotence=True) as producer:
        sent = [await producer.send(topic, str(number).encode()) for number in numbers]
        await asyncio.gather(*sent)


async def consume(stack: EmbeddedStack, topic: str, count: int) -> list[int]:
    """Consume from the group's offset, and commit."""
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=stack.bootstrap_servers,
        group_id=f"{topic}-readers",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    async with consumer:
        found = [int((await consumer.getone()).value) for _ in range(count)]
        await consumer.commit()
        end = await consumer.end_offsets([TopicPartition(topic, 0)])
        assert await consumer.committed(TopicPartition(topic, 0)) == end[TopicPartition(topic, 0)]
    return found
