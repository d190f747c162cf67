"""Topics that refuse writes, are compacted hard, or have the wrong number of partitions."""

import random
import time
from contextlib import AsyncExitStack

from aiokafka.admin import NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from afterword.operating.topics import LARGE_RECORD_BYTES
from afterword.streams.segmenter.state import MESSAGES, TABLES
from tests.e2e.faults.access import allow_again, forbid_writing
from tests.e2e.faults.fault import Fault
from tests.e2e.faults.kinds.records import everything
from tests.e2e.faults.load import Sent
from tests.e2e.faults.world import World

CLEANER_SECONDS = 400.0
GROWN = "partitions, but was read when it had"
HARD = {
    "cleanup_policy": "compact",
    "segment_ms": "500",
    "min_cleanable_dirty_ratio": "0.01",
    "max_compaction_lag_ms": "1000",
    "delete_retention_ms": "100",
    "max_message_bytes": str(LARGE_RECORD_BYTES),
}


class Compacted(Fault):
    name = "changelogs compacted hard, then state directories deleted"
    company = "workers"
    share = 45.0

    async def inject(self, world: World, chance: random.Random) -> None:
        await self._compact_hard(world)
        await self._until_compacted(world)
        for name in world.running("segmenter"):
            world.deployment.kill(name)
            world.deployment.lose_state(name)
            world.start("segmenter", name)
        await world.progress()

    async def _compact_hard(self, world: World) -> None:
        async with world.admin() as admin:
            often = {"log.cleaner.backoff.ms": "200"}
            await admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, "1", configs=often)])
        for table in TABLES:
            await world.configure(world.deployment.settings.kafka.changelog(table), **HARD)

    async def _until_compacted(self, world: World) -> None:
        kafka = world.deployment.settings.kafka
        changelog, deadline = kafka.changelog(TABLES[0]), time.monotonic() + CLEANER_SECONDS
        while True:
            rows = await everything(kafka.bootstrap_servers, changelog, kafka.partitions)
            written = sum({row.partition: row.offset for row in rows}.values())
            if rows and len(rows) < written / 3:
                self.notes.append(f"of {written} records {len(rows)} are left")
                return
            assert time.monotonic() < deadline, f"not compacted: {len(rows)} of {written}"
            await world.busy(20)


class Refused(Fault):
    """The broker refuses writes to the output topic or a changelog, in turn."""

    company = "workers"
    share = 30.0
    at_least = 4

    def topic(self, world: World) -> str:
        kafka = world.deployment.settings.kafka
        return kafka.changelog(MESSAGES) if self.injected % 2 else kafka.episodes_topic


class TooSmall(Refused):
    name = "output or changelog refuses large records"

    async def inject(self, world: World, chance: random.Random) -> None:
        topic, kafka = self.topic(world), world.deployment.settings.kafka
        # a worker that starts again looks at this setting of its changelogs
        kept = {"cleanup_policy": "compact"} if topic == kafka.changelog(MESSAGES) else {}
        async with world.ending(world.running("segmenter")[0], "MessageSizeTooLarge"):
            await world.configure(topic, max_message_bytes="500", **kept)
        await world.configure(topic, max_message_bytes=str(LARGE_RECORD_BYTES), **kept)
        await world.progress()


class Unauthorized(Refused):
    name = "output or changelog refuses the worker"

    async def inject(self, world: World, chance: random.Random) -> None:
        topic = self.topic(world)
        name = world.running("segmenter")[0]
        async with world.ending(name, "TopicAuthorizationFailed"), world.admin() as admin:
            await forbid_writing(admin, topic)
        async with world.admin() as admin:
            await allow_again(admin, topic)
        await world.progress()


class SummarizerRefused(Fault):
    """The broker refuses records by their size, then by permissions."""

    name = "summary.created refuses the summarizer"
    company = "workers"
    share = 30.0

    async def inject(self, world: World, chance: random.Random) -> None:
        topic, name = world.deployment.settings.kafka.summaries_topic, world.running("summarizer")[0]
        async with world.ending(name, "MessageSizeTooLarge"):
            await world.configure(topic, max_message_bytes="300")
        await world.configure(topic, max_message_bytes=str(LARGE_RECORD_BYTES))
        await world.ready(name)  # the segmenter's progress says nothing about the summarizer's restart
        async with world.ending(name, "TopicAuthorizationFailed"), world.admin() as admin:
            await forbid_writing(admin, topic)
        async with world.admin() as admin:
            await allow_again(admin, topic)
        await world.progress()


class OutputDeleted(Fault):
    name = "output topic deleted"
    company = "workers"
    share = 30.0
    most = 1

    async def inject(self, world: World, chance: random.Random) -> None:
        """Delete the topic of dead letters, which is still empty: a deleted topic's records are lost."""
        kafka = world.deployment.settings.kafka
        topic = kafka.dead_letters(kafka.messages_topic)
        async with world.ending(world.running("segmenter")[0], topic), world.admin() as admin:
            await admin.delete_topics([topic])
            await world.load.send(Sent(b"nobody", b"not JSON", int(time.time() * 1000)))
        async with world.admin() as admin:
            await admin.create_topics([NewTopic(topic, kafka.partitions, 1)])
        await world.progress()


class Grown(Fault):
    name = "messages grown from 4 to 8 partitions"
    company = "clocks"
    changes = False
    recovers = False
    share = 20.0
    most = 1

    async def inject(self, world: World, chance: random.Random) -> None:
        kafka, workers = world.deployment.settings.kafka, world.deployment.workers
        topics = kafka.messages_topic, *map(kafka.changelog, TABLES)
        async with AsyncExitStack() as refusing:
            for name in (*world.running("segmenter"), *world.running("archiver")):
                await world.ready(name)  # the worker must have seen the topic before the change
                refusing.callback(lambda name: workers.pop(name).kill(), name)  # or the supervisor restarts it in vain
                await refusing.enter_async_context(world.ending(name, GROWN))
            async with world.admin() as admin:
                await admin.create_partitions(dict.fromkeys(topics, NewPartitions(2 * kafka.partitions)))
        again = world.start("segmenter")
        async with world.ending(again, GROWN):
            pass
        workers.pop(again).kill()
