"""Parts that the routes use, opened once for a process."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from afterword.erasing.requests import ErasureRunner
from afterword.memory import Memory
from afterword.producer import WrittenAt
from afterword.schemas.records import ProducerRecord
from afterword.serving.feed import Feed
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import UsageBy, UsageTotals
from afterword.streams.telemetry import Metrics

if TYPE_CHECKING:
    from afterword.serving.principal import Authenticator, Rates, Streams


class RecordSender(Protocol):
    """Sender of records: an Outbox."""

    async def send(self, records: Sequence[ProducerRecord]) -> list[WrittenAt]:
        """Raises: BrokerUnavailable, TopicMissing."""
        ...


@dataclass(frozen=True)
class Services:
    """Parts of a running server, shared by all requests."""

    settings: Settings
    ping_database: Callable[[], Awaitable[None]]
    """Raises: StoreUnavailable."""
    usage: Callable[[UsageBy], Awaitable[list[UsageTotals]]]
    """Raises: StoreUnavailable."""
    memory: Memory
    authenticator: "Authenticator"
    rates: "Rates"
    streams: "Streams"
    metrics: Metrics
    outbox: RecordSender
    feed: Feed
    erasures: ErasureRunner
    warming: "asyncio.Task[None] | None" = None
    """Task that has to end before the server is ready."""
