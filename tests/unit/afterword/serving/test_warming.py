"""A server does at its start what first requests would do, and is ready afterwards."""

import asyncio
from dataclasses import replace
from typing import Any, Self

import httpx
import pytest

from afterword.reading.memory import Memory
from afterword.serving.server import make_app, warm_up
from afterword.serving.writing import Outbox
from afterword.streams.errors import BrokerUnavailable, StoreUnavailable
from afterword.streams.settings import Kafka
from afterword.streams.stores.index import Candidate, Dense, Query
from tests.doubles.stores import MemoryEpisodes, MemoryMessages
from tests.unit.afterword.serving.served import serving


class Connecting:
    """A producer that connects, unless its broker is away."""

    def __init__(self, away: bool = False) -> None:
        self.away = away
        self.connected = 0

    async def __aenter__(self) -> Self:
        if self.away:
            raise BrokerUnavailable(servers="kafka.internal:9092", problem="NodeNotReadyError")
        self.connected += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: it holds no connection."""


class Watched(MemoryEpisodes):
    """A store that counts reads, and can be away."""

    away = False
    reads = 0

    async def conversation(self, name: str) -> Any:
        if self.away:
            raise StoreUnavailable(store="mongodb", problem="AutoReconnect")
        self.reads += 1
        return await super().conversation(name)


class World:
    def __init__(self, broker_away: bool = False) -> None:
        self.searched: list[Query] = []
        self.producer, self.episodes = Connecting(broker_away), Watched()
        self.memory = Memory(self.episodes, MemoryMessages(), self.search)
        self.outbox = Outbox(Kafka(), lambda: self.producer, 1)  # type: ignore[arg-type, return-value]  # as far as it is used

    async def search(self, query: Query, _: Dense | None = None) -> list[Candidate]:
        self.searched.append(query)
        return []


async def test_it_reads_searches_and_connects() -> None:
    world = World()
    await warm_up(world.memory, world.outbox)
    assert world.episodes.reads
    assert any(query.started_after for query in world.searched), "the question names a time"
    assert world.producer.connected == 1
    await world.outbox.open()
    assert world.producer.connected == 1


@pytest.mark.parametrize("broker_away", [True, False])
async def test_what_is_away_is_left_to_the_requests(broker_away: bool) -> None:
    world = World(broker_away)
    world.episodes.away = not broker_away
    await warm_up(world.memory, world.outbox)
    assert world.searched
    assert world.producer.connected == (0 if broker_away else 1)


async def test_the_server_is_ready_when_it_is_warm() -> None:
    async with serving() as served:
        cold = asyncio.Event()

        async def warming() -> None:
            await cold.wait()

        task = asyncio.create_task(warming())
        app = make_app(replace(served.services, warming=task))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            answer = await client.get("/readyz")
            assert (answer.status_code, answer.json()["reasons"]) == (503, {"server": "is warming up"})
            assert (await client.get("/livez")).status_code == 200
            cold.set()
            await task
            assert (await client.get("/readyz")).status_code == 200
