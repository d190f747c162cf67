"""The services that the routes use, opened once per process."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from fastapi import Request

from afterword.operating.erasing.requests import ErasureRunner
from afterword.reading.memory import Memory
from afterword.serving.feed import Feed
from afterword.streams.errors import BrokerUnavailable
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.episodes import UsageBy, UsageTotals
from afterword.streams.telemetry import Metrics

if TYPE_CHECKING:
    from afterword.serving.principal import Authenticator, Rates, Streams
    from afterword.serving.writing import Outbox

T = TypeVar("T")


@dataclass(frozen=True)
class Services:
    """The parts of a running server, shared by all requests."""

    settings: Settings
    ping_database: Callable[[], Awaitable[None]]
    """May raise StoreUnavailable."""
    usage: Callable[[UsageBy], Awaitable[list[UsageTotals]]]
    """May raise StoreUnavailable."""
    memory: Memory
    authenticator: "Authenticator"
    rates: "Rates"
    streams: "Streams"
    metrics: Metrics
    outbox: "Outbox"
    feed: Feed
    erasures: ErasureRunner
    warming: "asyncio.Task[None] | None" = None
    """A task that must end before the server is ready."""


async def in_time(kafka: Kafka, seconds: float, work: Awaitable[T]) -> T:
    """Limit the time of work that waits for Kafka. Raises: BrokerUnavailable."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise BrokerUnavailable(servers=kafka.bootstrap_servers, problem=f"no answer in {seconds:g} s") from None


def services_of(request: Request) -> Services:
    found: Services = request.app.state.services
    return found
