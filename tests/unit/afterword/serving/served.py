"""The application over stores in memory, and clients that call it without a network."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI

from afterword.operating.eraser import ErasureRunner
from afterword.reading.memory import Memory
from afterword.schemas.records import ProducerRecord
from afterword.serving.feed import Feed
from afterword.serving.outbox import Begun
from afterword.serving.requests import Authenticator, Nobody, Rates, Services
from afterword.serving.server import make_app
from afterword.streams.errors import BrokerUnavailable, StoreUnavailable
from afterword.streams.settings import Episodes, Kafka, Llm, Serve, Settings
from afterword.streams.stores.bookkeeping import EndedSessions
from afterword.streams.stores.sqlite import SqliteFile, SqliteRecords
from afterword.streams.telemetry.metrics import Metrics
from afterword.writing.producer import WrittenAt
from tests.doubles.eraser import ScriptedEraser
from tests.unit.afterword.reading.remembered import Remembered


class Database:
    """A database that answers pings unless it is away."""

    away = False

    async def ping(self) -> None:
        if self.away:
            raise StoreUnavailable(store="mongodb", problem="AutoReconnect")


class Broker:
    """An Outbox that accepts records unless it is away."""

    def __init__(self) -> None:
        self.records: list[ProducerRecord] = []
        self.begun = Begun()
        self.away = False

    async def send(self, records: Sequence[ProducerRecord]) -> list[WrittenAt]:
        if self.away:
            raise BrokerUnavailable(servers="kafka.internal:9092", problem="NodeNotReadyError")
        first = len(self.records)
        self.records += records
        return [WrittenAt(0, first + n) for n in range(len(records))]


@dataclass
class Served:
    """A server, its stores, and a client."""

    remembered: Remembered
    database: Database
    broker: Broker
    services: Services
    erasures: ErasureRunner
    eraser: ScriptedEraser
    client: httpx.AsyncClient
    app: FastAPI


@asynccontextmanager
async def serving(
    authenticator: Authenticator | None = None, memory: Memory | None = None, **settings: Any
) -> AsyncIterator[Served]:
    remembered, database, broker = Remembered(), Database(), Broker()
    episodes, llm = settings.pop("episodes", Episodes()), settings.pop("llm", Llm())
    serve, metrics = Serve(**settings), Metrics("server", "any")
    eraser = ScriptedEraser()
    erasures = ErasureRunner(eraser.erasures, eraser.prepare, eraser.opened)
    services = Services(
        settings=Settings(serve=serve, episodes=episodes, llm=llm),
        ping_database=database.ping,
        usage=remembered.episodes.usage,
        count_messages=remembered.messages.total,
        memory=memory or remembered.memory,
        authenticator=authenticator or Nobody(),
        rates=Rates(serve.requests_per_minute),
        sessions=EndedSessions(SqliteRecords(SqliteFile(None))),
        metrics=metrics,
        outbox=broker,
        feed=Feed(Kafka(), metrics, remembered.episodes.lookup),
        erasures=erasures,
    )
    app = make_app(services)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield Served(remembered, database, broker, services, erasures, eraser, client, app)
