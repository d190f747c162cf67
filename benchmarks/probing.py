"""Messages at regular intervals in each partition, each of which closes an episode, and how long each took."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from benchmarks.deployment import Deployment
from benchmarks.llm import chat, name_of

VALUES = {"episodes": {"trigger": 1, "min_episode_size": 1}}
"""Settings with which a message closes an episode."""


class Trip(NamedTuple):
    partition: int
    began: float
    """Moment of sending, in seconds of the monotonic clock."""
    seconds: float
    """Time until its episode could be read."""

    @property
    def ended(self) -> float:
        return self.began + self.seconds


@dataclass
class Probe:
    partitions: int
    interval_seconds: float
    """Time between two messages of a partition."""
    sent: dict[str, float] = field(default_factory=dict)
    """Seconds of the monotonic clock, by message id, of those that are under way."""
    trips: list[Trip] = field(default_factory=list)

    async def send(self, producer: AIOKafkaProducer, topic: str) -> None:
        """Send for ever, one partition after the other."""
        began, count = time.monotonic(), 0
        while True:
            ordinal, partition = divmod(count, self.partitions)
            [(message, value)] = chat(name_of(partition), ordinal, 1)
            self.sent[message] = time.monotonic()
            await producer.send(topic, value, key=name_of(partition).encode(), partition=partition)
            count += 1
            await asyncio.sleep(began + count * self.interval_seconds / self.partitions - time.monotonic())

    async def receive(self, episodes: AIOKafkaConsumer) -> None:
        async for record in episodes:
            now = time.monotonic()
            for message in orjson.loads(record.value)["messages"]:
                began = self.sent.pop(message["id"], None)
                if began is not None:
                    self.trips.append(Trip(int(message["id"].split("-")[-2]), began, now - began))

    def longest(self, since: float, until: float) -> dict[int, float]:
        """The longest trip of each partition's messages sent in that time."""
        found: dict[int, float] = {}
        for trip in self.trips:
            if since <= trip.began <= until:
                found[trip.partition] = max(trip.seconds, found.get(trip.partition, 0.0))
        return found

    def first_end(self, since: float) -> dict[int, float]:
        """The moment of each partition at which the first of its messages sent since then had made its trip."""
        found: dict[int, float] = {}
        for trip in self.trips:
            if trip.began >= since:
                found[trip.partition] = min(trip.ended, found.get(trip.partition, trip.ended))
        return found


@asynccontextmanager
async def probing(deployment: Deployment, interval_seconds: float) -> AsyncIterator[Probe]:
    kafka, probe = deployment.settings.kafka, Probe(deployment.partitions, interval_seconds)
    servers = kafka.bootstrap_servers
    async with (
        AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer,
        AIOKafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed") as episodes,
    ):
        episodes.assign([TopicPartition(kafka.episodes_topic, number) for number in range(deployment.partitions)])
        await episodes.seek_to_end()
        tasks = [asyncio.create_task(probe.receive(episodes))]
        tasks.append(asyncio.create_task(probe.send(producer, kafka.messages_topic)))
        try:
            yield probe
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)
