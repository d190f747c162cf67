"""Kafka dies, or runs without answering."""

import asyncio
import random
from typing import ClassVar

from afterword.embedded.process import until_ready
from afterword.embedded.stack import has_brokers
from tests.e2e.faults.fault import Fault
from tests.e2e.faults.world import PATIENCE_SECONDS, World


class BrokerKilled(Fault):
    name = "broker killed, restarted after a while"
    company = "workers"
    share = 75.0

    async def inject(self, world: World, chance: random.Random) -> None:
        await asyncio.to_thread(world.servers.kafka.process.kill)
        await asyncio.sleep(world.seconds(4, 60))
        await world.servers.stack.start_kafka()
        await world.progress()


class BrokerHung(Fault):
    name = "broker unreachable, its port open"
    company = "workers"
    share = 75.0

    async def inject(self, world: World, chance: random.Random) -> None:
        broker = world.servers.kafka
        broker.process.suspend()
        try:
            await asyncio.sleep(world.seconds(5, 60))
        finally:
            broker.process.resume()
        await world.progress()


class Cluster(Fault):
    name = "three brokers: one killed, then a rolling restart"
    company = "cluster"
    brokers = 3
    settings: ClassVar = {"kafka": {"replication_factor": 3, "min_insync_replicas": 2}}
    share = 75.0

    async def inject(self, world: World, chance: random.Random) -> None:
        brokers = world.servers.kafka.brokers
        world.stalls.lap()
        victim = chance.choice(brokers)
        await asyncio.to_thread(victim.process.kill)
        await asyncio.sleep(world.seconds(3, 20))
        await world.progress()
        self.notes.append(f"one killed: pause {world.stalls.lap():.1f} s")
        await self._started(world, victim)
        for broker in brokers if world.long else brokers[:1]:
            await asyncio.to_thread(broker.stop)
            await self._started(world, broker)
        self.notes.append(f"rolling restart: longest pause {world.stalls.lap():.1f} s")

    async def _started(self, world: World, broker: object) -> None:
        await asyncio.to_thread(broker.start)  # type: ignore[attr-defined]
        await until_ready(broker.process, lambda: has_brokers(broker.bootstrap_servers, 3))  # type: ignore[attr-defined]
        async with asyncio.timeout(PATIENCE_SECONDS), world.admin() as admin:
            while not await _in_sync(admin):  # noqa: ASYNC110 – the broker sets no event
                await asyncio.sleep(0.3)
        await world.progress()


async def _in_sync(admin: object) -> bool:
    topics = await admin.describe_topics()  # type: ignore[attr-defined]
    return all(len(part["isr"]) == len(part["replicas"]) for topic in topics for part in topic["partitions"])
