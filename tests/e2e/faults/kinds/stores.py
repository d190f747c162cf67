"""Faults of the summarizer's servers: stopped, slow, or resetting connections. The segmenter must not notice."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import ClassVar

import apsw

from afterword.schemas import SummaryCreated
from tests.e2e.faults.changes import LLM, announced
from tests.e2e.faults.fault import Fault
from tests.e2e.faults.memory import MOST_MEGABYTES, megabytes
from tests.e2e.faults.world import ON_SERVERS, World
from tests.openai_server import after, resets

STORES, SERVERS = "stores", "servers"


class Away(Fault):
    """A server that the summarizer needs is stopped for a while; the segmenter must keep up."""

    share = 60.0
    pause_seconds = (2.0, 4.0)

    def __init__(self) -> None:
        super().__init__()
        self._stall = self._undisturbed = 0.0
        self._memory = 0

    def broken(self, world: World) -> AbstractAsyncContextManager[None]:
        """Return a block in which the server is away."""
        raise NotImplementedError

    async def inject(self, world: World, chance: random.Random) -> None:
        await world.caught_up()
        self._undisturbed = max(self._undisturbed, world.stalls.lap())
        async with self.broken(world):
            for _ in range(int(world.seconds(3, 60))):
                await asyncio.sleep(1)
                self._memory = max(self._memory, megabytes(world, "summarizer"))
            await world.caught_up()
            self._stall = max(self._stall, world.stalls.lap())

    async def check(self, world: World) -> None:
        stalls = f"{self._stall:.1f} s, {self._undisturbed:.1f} s without the fault"
        self.notes.append(f"meanwhile: segmenter's longest stall {stalls}; summarizer at most {self._memory} MB")
        assert self._memory <= MOST_MEGABYTES, f"the summarizer takes {self._memory} MB"
        assert not world.ended, f"ended by themselves: {world.ended}"


class FileLocked(Away):
    """Locks the SQLite file for longer than a write waits."""

    name = "SQLite file locked by another process"
    company = STORES

    @asynccontextmanager
    async def broken(self, world: World) -> AsyncIterator[None]:
        connection = apsw.Connection(str(world.deployment.settings.sqlite.path))
        connection.set_busy_timeout(60_000)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.close()


class OnServers(Away):
    settings: ClassVar = ON_SERVERS
    company = SERVERS


class MongoDown(OnServers):
    name = "MongoDB killed, restarted after a while"

    @asynccontextmanager
    async def broken(self, world: World) -> AsyncIterator[None]:
        await asyncio.to_thread(world.servers.database.process.kill)
        yield
        await world.servers.database.run()


class MongoHung(OnServers):
    name = "MongoDB suspended"

    @asynccontextmanager
    async def broken(self, world: World) -> AsyncIterator[None]:
        world.servers.database.process.suspend()
        try:
            yield
        finally:
            world.servers.database.process.resume()


class MongoSlow(OnServers):
    name = "MongoDB slow"

    def broken(self, world: World) -> AbstractAsyncContextManager[None]:
        return world.servers.mongo.slowed(world.seconds(1, 30))


class MongoResets(OnServers):
    name = "MongoDB's connections reset"

    def broken(self, world: World) -> AbstractAsyncContextManager[None]:
        return world.servers.mongo.resetting()


class Llm(Away):
    """An LLM outage, with a real deadline and few attempts."""

    settings: ClassVar = {
        "llm": {**LLM, "attempts": 2, "timeout_seconds": 40, "retry_budget_seconds": 4},
        "quality": {"enabled": False},  # it gives every conversation the same summary
    }
    company = STORES
    falls_back = True

    async def check(self, world: World) -> None:
        await super().check(world)
        sources = await summary_sources(world)
        self.notes.append(f"announced: {sources['llm']} of the LLM, {sources['fallback']} fallbacks")
        assert sources["llm"] > 0, "no summary is the LLM's"
        assert sources["fallback"] > 0 or not self.falls_back, "nothing fell back"


class LlmDown(Llm):
    name = "LLM down"

    def broken(self, world: World) -> AbstractAsyncContextManager[None]:
        return world.servers.llm.away()


class LlmSlow(Llm):
    name = "LLM slow"
    falls_back = False

    def broken(self, world: World) -> AbstractAsyncContextManager[None]:
        return world.servers.llm.answering(after(world.seconds(3, 30), world.servers.llm.usual))


class LlmResets(Llm):
    name = "LLM's connections reset"

    def broken(self, world: World) -> AbstractAsyncContextManager[None]:
        return world.servers.llm.answering(resets())


class QdrantDown(OnServers):
    name = "Qdrant down"

    @asynccontextmanager
    async def broken(self, world: World) -> AsyncIterator[None]:
        async with world.servers.qdrant.away(), world.servers.index.killed():
            yield


class QdrantSlow(OnServers):
    name = "Qdrant slow"

    def broken(self, world: World) -> AbstractAsyncContextManager[None]:
        return world.servers.qdrant.slowed(world.seconds(1, 30))


class QdrantResets(OnServers):
    name = "Qdrant's connections reset"

    def broken(self, world: World) -> AbstractAsyncContextManager[None]:
        return world.servers.qdrant.resetting()


async def summary_sources(world: World) -> Counter[str]:
    """Count the announced summaries of each source."""
    events = announced(world.deployment.settings.kafka)
    return Counter([event.quality.source async for event in events if isinstance(event, SummaryCreated)])
