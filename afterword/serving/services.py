"""The parts of a running server."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fastapi import Request

from afterword.operating.eraser import ErasureRunner
from afterword.reading.memory import Memory
from afterword.serving.feed import Feed
from afterword.serving.outbox import Outbox, Pace, WrittenAnswer
from afterword.serving.principal import Authenticator, Rates
from afterword.streams.errors import StoreUnavailable
from afterword.streams.settings import Settings
from afterword.streams.stores.bookkeeping import EndedSessions
from afterword.streams.stores.episodes import UsageBy, UsageTotals
from afterword.streams.tasks import FairTurns
from afterword.streams.telemetry import Metrics

PING_SECONDS = 3.0
RESTS = 2.0
"""After a key's large request, its next one waits this many times as long as the request took."""


@dataclass(frozen=True)
class Services:
    """The parts of a running server, shared by all requests."""

    settings: Settings
    ping_database: Callable[[], Awaitable[None]]
    """May raise StoreUnavailable."""
    usage: Callable[[UsageBy], Awaitable[list[UsageTotals]]]
    """May raise StoreUnavailable."""
    count_messages: Callable[[], Awaitable[int]]
    """May raise StoreUnavailable."""
    memory: Memory
    authenticator: Authenticator
    rates: Rates
    sessions: EndedSessions
    metrics: Metrics
    outbox: Outbox
    feed: Feed
    erasures: ErasureRunner
    open_streams: Counter[str] = field(default_factory=Counter)
    """Numbers of open event streams by key."""
    turns: FairTurns = field(default_factory=lambda: FairTurns(rests=RESTS))
    """Turns by key, for what takes a request long."""
    pace: Pace[tuple[str, str | None, str], WrittenAnswer] = field(default_factory=lambda: Pace(1.0))
    """For messages that are sent again and again, by conversation, tenant and id."""

    async def database_answers(self) -> bool:
        try:
            async with asyncio.timeout(PING_SECONDS):
                await self.ping_database()
        except (StoreUnavailable, TimeoutError):
            return False
        return True


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services
