"""A segmenter of one's own on a stack that others use too: its topics, its group, its state."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError

from afterword.embedded import EmbeddedStack
from afterword.streams.segmenter.state import TABLES
from afterword.streams.settings import PREFIX, Settings, load_settings
from afterword.topics import ensure_topics
from benchmarks.processes import Worker, worker

Values = Mapping[str, Any]
"""Settings by their names, nested as they are."""

POLL_SECONDS = 0.05
COMMIT_SECONDS = 240.0
BATCH_BYTES = 256 * 1024


@dataclass(frozen=True)
class Deployment:
    stack: EmbeddedStack
    directory: Path
    name: str
    partitions: int
    values: Values = field(default_factory=dict)
    """Settings besides those that make it another deployment than its neighbours on the stack."""

    @property
    def all_values(self) -> dict[str, Any]:
        kafka = {
            "bootstrap_servers": self.stack.bootstrap_servers,
            "messages_topic": f"{self.name}-messages",
            "episodes_topic": f"{self.name}-episodes",
            "summaries_topic": f"{self.name}-summaries",
            "retry_topic": f"{self.name}-retry",
            "segmenter_id": f"{self.name}-segmenter",
            "partitions": self.partitions,
        }
        return {"kafka": kafka, "state_dir": self.state, **self.values}

    @property
    def settings(self) -> Settings:
        return load_settings(**self.all_values)

    @property
    def state(self) -> Path:
        return self.directory / self.name / "state"

    def changelogs(self) -> list[TopicPartition]:
        """All partitions of all of its changelogs."""
        kafka = self.settings.kafka
        topics = [kafka.changelog(table) for table in TABLES]
        return [TopicPartition(topic, number) for topic in topics for number in range(self.partitions)]

    async def make_topics(self) -> None:
        await ensure_topics(self.settings)

    def segmenter(self) -> AbstractAsyncContextManager[Worker]:
        return worker("segmenter", self.directory / self.name, environment(self.all_values))

    async def produce(self, records: Iterable[tuple[bytes, bytes]], partition: int) -> None:
        """Produce to one partition of the messages, in batches made here: several times as fast as record by record."""
        topic, servers = self.settings.kafka.messages_topic, self.stack.bootstrap_servers
        async with AIOKafkaProducer(bootstrap_servers=servers, acks="all", max_batch_size=BATCH_BYTES) as producer:
            batch = producer.create_batch()
            for key, value in records:
                if batch.append(key=key, value=value, timestamp=None) is None:
                    await (await producer.send_batch(batch, topic, partition=partition))
                    batch = producer.create_batch()
                    batch.append(key=key, value=value, timestamp=None)
            await (await producer.send_batch(batch, topic, partition=partition))

    async def until_committed(self, total: int) -> None:
        """Wait until that many records of all partitions together are committed. Raises: TimeoutError."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.stack.bootstrap_servers)
        await admin.start()
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                while await committed(admin, self.settings.kafka.segmenter_id) < total:  # noqa: ASYNC110 – the broker tells only who asks
                    await asyncio.sleep(POLL_SECONDS)
        finally:
            await admin.close()


async def committed(admin: AIOKafkaAdminClient, group: str) -> int:
    try:
        found = await admin.list_consumer_group_offsets(group)
    except GroupCoordinatorNotAvailableError:  # the cluster's first group: its topic is being made
        return 0
    return sum(max(0, position.offset) for position in found.values())


def environment(values: Values, prefix: str = PREFIX) -> dict[str, str]:
    """The variables that say what these settings say."""
    variables: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            variables |= environment(value, f"{prefix}{name.upper()}__")
        else:
            variables[f"{prefix}{name.upper()}"] = str(value)
    return variables
