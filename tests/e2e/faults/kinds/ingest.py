"""Ingest is killed while it maps another application's topic."""

import asyncio
import random
from collections import Counter
from typing import Any

import orjson
from aiokafka.admin import NewTopic

from afterword.streams.kafka.clients import running_producer
from afterword.streams.kafka.log_reader import open_log
from tests.e2e.faults.fault import Fault
from tests.e2e.faults.kinds.records import everything
from tests.e2e.faults.world import PATIENCE_SECONDS, World

CONVERSATIONS = 40
AT_ONCE = 2000
"""Records of one injection, enough for several transactions."""
KILLS = 3
ROLE = "ingest"
SOURCE = """
[[sources]]
topics = ["{topic}"]
[sources.map]
id = "value.id"
conversation_id = "value.thread"
user_id = "key"
role = "value.role"
content = "value.text"
"""


class IngestKilled(Fault):
    name = "kill -9 of ingest"
    company = "ingest"
    static = True
    exact = False  # the rules alone do not know of these messages
    counted = False
    changes = False
    share = 60.0
    times = 3
    at_least = 10

    def __init__(self) -> None:
        super().__init__()
        self._sent = 0

    async def inject(self, world: World, chance: random.Random) -> None:
        """Kill ingest several times while it reads many records, then let it finish."""
        if not self.injected:
            await self._prepare(world)
        await self._send(world)
        for _ in range(KILLS):
            await world.ready(ROLE)
            await asyncio.sleep(chance.uniform(0, 0.5))
            world.crash(ROLE)
        await until_consumed(world)
        for number in range(CONVERSATIONS):
            await world.load.put(thread(number), flush(number))

    async def _prepare(self, world: World) -> None:
        settings, topic = world.deployment.settings, topic_of(world)
        partitions = settings.kafka.partitions
        async with world.admin() as admin:
            await admin.create_topics([NewTopic(name, partitions, 1) for name in (topic, f"{topic}.dlq")])
        settings.ingest.file.write_text(SOURCE.format(topic=topic))
        world.start(ROLE)

    async def _send(self, world: World) -> None:
        async with running_producer(world.deployment.settings.kafka) as producer:
            sending = []
            for number in range(self._sent, self._sent + AT_ONCE):
                key, value = b"user-%d" % (number % CONVERSATIONS), orjson.dumps(record(number))
                sending.append(await producer.send(topic_of(world), value, key=key))
            await asyncio.gather(*sending)
        self._sent += AT_ONCE

    async def check(self, world: World) -> None:
        kafka = world.deployment.settings.kafka
        found = await everything(kafka.bootstrap_servers, kafka.messages_topic, kafka.partitions)
        values = [orjson.loads(one.value) for one in found if one.key and one.key.startswith(b"ingested-")]
        ids = Counter(value["id"] for value in values if "id" in value)
        lost, twice = self._sent - len(ids), sum(ids.values()) - len(ids)
        kills = self.injected * KILLS
        self.notes.append(f"{self._sent:,} records and {kills} kills of ingest: {lost} lost, {twice} twice")
        assert (lost, twice) == (0, 0), self.notes[-1]
        letters = await everything(kafka.bootstrap_servers, f"{topic_of(world)}.dlq", kafka.partitions)
        assert not letters, f"{len(letters)} dead letters"


def topic_of(world: World) -> str:
    return f"chat-{world.deployment.settings.kafka.ingest_id}"


def thread(number: int) -> str:
    return f"ingested-{number}"


def flush(number: int) -> bytes:
    return orjson.dumps({"type": "conversation.flush", "conversation_id": thread(number)})


def record(number: int) -> dict[str, Any]:
    role = ("user", "assistant")[number // CONVERSATIONS % 2]
    return {
        "id": f"i{number}",
        "thread": thread(number % CONVERSATIONS),
        "role": role,
        "text": f"Text number {number}.",
    }


async def until_consumed(world: World) -> None:
    kafka = world.deployment.settings.kafka
    async with asyncio.timeout(PATIENCE_SECONDS), open_log(kafka) as log:
        while await log.left(kafka.ingest_id, topic_of(world), await log.ends(topic_of(world))):  # noqa: ASYNC110 – offsets set no event
            await asyncio.sleep(0.3)
