"""A server does at its start what first requests would do."""

from pathlib import Path
from typing import Any, Self

import pytest

from afterword.reading.memory import Memory
from afterword.serving import server
from afterword.serving.outbox import Outbox
from afterword.serving.server import warm_up
from afterword.streams.errors import BrokerUnavailable, StoreUnavailable
from afterword.streams.settings import Kafka, load_settings
from afterword.streams.stores.index import Candidate, Dense, Query
from tests.doubles.stores import MemoryEpisodes, MemoryMessages


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


async def test_warming_reads_searches_and_connects() -> None:
    world = World()
    await warm_up(world.memory, world.outbox)
    assert world.episodes.reads
    assert any(query.started_before for query in world.searched), "the question names a time"
    assert world.producer.connected == 1
    await world.outbox.open()
    assert world.producer.connected == 1


@pytest.mark.parametrize("broker_away", [True, False])
async def test_absent_services_are_left_to_the_requests(broker_away: bool) -> None:
    world = World(broker_away)
    world.episodes.away = not broker_away
    await warm_up(world.memory, world.outbox)
    assert world.searched
    assert world.producer.connected == (0 if broker_away else 1)


async def test_services_are_warm_before_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warmed = []

    async def warm(*given: object) -> None:
        warmed.append(given)

    monkeypatch.setattr(server, "warm_up", warm)
    async with server.open_services(load_settings(sqlite={"path": tmp_path / "afterword.db"})) as services:
        assert warmed == [(services.memory, services.outbox)]
