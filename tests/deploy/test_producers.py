"""The programs of docs/how-to/produce.md and examples/produce all choose the same partition.

Each needs its language on the machine, and its client from the language's own registry.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from afterword.embedded.java import JarCache
from afterword.schemas import MessageCreated, decode_input
from tests.deploy.builds import needs
from tests.stack import Stack

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "produce.md"
EXAMPLES = ROOT / "examples" / "produce"
PARTITIONS = 8
TOPIC = "messages"


def program(title: str) -> str:
    found = re.search(
        rf"^## {re.escape(title)}\n(?:<!--.*-->\n)?```\w+\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    assert found, title
    return found[1]


def run(directory: Path, *command: str, **environment: str) -> None:
    done = subprocess.run(
        command, cwd=directory, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def afterword(directory: Path, servers: str) -> None:
    (directory / "produce.py").write_text(program("Python with afterword"))
    run(directory, sys.executable, "produce.py", BOOTSTRAP_SERVERS=servers)


def librdkafka(directory: Path, servers: str) -> None:
    run(directory, sys.executable, "-m", "venv", "client")
    run(directory, "client/bin/pip", "install", "--quiet", "confluent-kafka")
    run(directory, "client/bin/python", str(EXAMPLES / "librdkafka.py"), BOOTSTRAP_SERVERS=servers)


def node(directory: Path, servers: str) -> None:
    run(directory, needs("npm"), "install", "--silent", "--no-audit", "--no-fund", "kafkajs@2")
    shutil.copy(EXAMPLES / "produce.js", directory)
    run(directory, needs("node"), "produce.js", BOOTSTRAP_SERVERS=servers, KAFKAJS_NO_PARTITIONER_WARNING="1")


def go(directory: Path, servers: str) -> None:
    shutil.copy(EXAMPLES / "main.go", directory)
    run(directory, needs("go"), "mod", "init", "produce")
    run(directory, "go", "mod", "tidy")
    run(directory, "go", "run", ".", BOOTSTRAP_SERVERS=servers)


def java(directory: Path, servers: str) -> None:
    shutil.copy(EXAMPLES / "Produce.java", directory)
    jars = JarCache()
    jars.ensure()
    run(directory, needs("java"), "-cp", jars.classpath("kafka"), "Produce.java", BOOTSTRAP_SERVERS=servers)


async def test_every_client_sends_a_conversation_to_the_same_partition(stack: Stack, tmp_path: Path) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=stack.bootstrap_servers)
    await admin.start()
    await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    await admin.close()
    clients: list[Callable[[Path, str], None]] = [afterword, librdkafka, node, go, java]
    for client in clients:
        directory = tmp_path / client.__name__
        directory.mkdir()
        client(directory, stack.bootstrap_servers)
    records = await everything(stack.bootstrap_servers)
    events = [decode_input(r.key, r.value, r.headers, r.timestamp) for r in records]
    assert all(isinstance(event, MessageCreated) for event in events)
    assert {event.id for event in events} == {f"{client.__name__}-1" for client in clients}
    assert len({record.partition for record in records}) == 1


async def everything(servers: str) -> list[ConsumerRecord]:
    async with AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        found: list[ConsumerRecord] = []
        while len(found) < sum(ends.values()):
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += records
        return found
