"""The server's producer: opened before the server is ready, or with a write, if Kafka was away then."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from afterword.producer import Producer, ProducerRecord, WrittenAt
from afterword.streams.errors import BrokerUnavailable
from afterword.streams.settings import Kafka

ACKNOWLEDGE_SECONDS = 15.0
"""Time for Kafka to acknowledge all records of a request; the client itself would go on for minutes."""


class Outbox:
    """Sends records to the topic `messages`; to be closed.

    `make`: builds a producer that is not connected yet. `seconds`: for the acknowledgement of all records of a request.
    """

    def __init__(self, kafka: Kafka, make: Callable[[], Producer], seconds: float = ACKNOWLEDGE_SECONDS) -> None:
        self._kafka = kafka
        self._make = make
        self._seconds = seconds
        self._opening = asyncio.Lock()
        self._running = AsyncExitStack()
        self._producer: Producer | None = None

    async def send(self, records: Sequence[ProducerRecord]) -> list[WrittenAt]:
        """Return when all are acknowledged, with their places.

        Raises: TopicMissing; BrokerUnavailable, also when there is no answer in time: some may be written later then,
        and a repeated message is dropped as a duplicate.
        """
        try:
            async with asyncio.timeout(self._seconds):
                return await (await self.open()).send_all(records)
        except TimeoutError:
            problem = f"no acknowledgement in {self._seconds:g} s"
            raise BrokerUnavailable(servers=self._kafka.bootstrap_servers, problem=problem) from None

    async def open(self) -> Producer:
        """Connect, unless it is connected. Raises: BrokerUnavailable, TopicMissing."""
        async with self._opening:
            if self._producer is None:
                self._producer = await self._running.enter_async_context(self._make())
        return self._producer

    async def close(self) -> None:
        """Wait for every acknowledgement, then disconnect."""
        await self._running.aclose()
