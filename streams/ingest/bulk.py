"""Makes bulk sources yield: their records are read only while segmenter and summarizer are hardly behind."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Protocol

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from afterword.streams.log_reader import TopicStalled
from afterword.streams.settings import Settings

LOOK_SECONDS = 10.0
"""Time for checking the groups' lag; if it takes longer, they count as behind."""
SEEN_SECONDS = 0.25
"""Time until mapped records show as lag: their transaction has to be committed first."""
EPISODE_MESSAGES = 10
"""How many messages an episode of lag counts for: the default trigger."""


class Lags(Protocol):
    """The part of `streams.log_reader.Log` that is asked."""

    async def ends(self, topic: str) -> dict[TopicPartition, int]: ...

    async def lags(
        self, group_id: str, topic: str, ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]: ...

    def unread(
        self, group_id: str, topic: str, ends: Mapping[TopicPartition, int]
    ) -> AsyncGenerator[ConsumerRecord, None]: ...


class BulkGate:
    """Says how many records of bulk sources may be read now."""

    def __init__(self, log: Lags, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        kafka = settings.kafka
        self._log = log
        self._most = settings.ingest.bulk_lag
        self._watched = (
            (kafka.segmenter_id, kafka.messages_topic, 1),
            (kafka.summarizer_id, kafka.episodes_topic, EPISODE_MESSAGES),
        )
        self._clock = clock
        self._before: dict[str, Mapping[TopicPartition, int]] = {}
        self._gone: list[tuple[float, int]] = []
        """When records were let through lately, and how many."""

    async def room(self) -> int:
        """Return how many records may be read; 0 while a group is behind, or Kafka does not answer."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                behind = [await self._left(group, topic) * weight for group, topic, weight in self._watched]
        except (KafkaError, TopicStalled, TimeoutError):
            return 0
        now = self._clock()
        self._gone = [(at, number) for at, number in self._gone if now - at < SEEN_SECONDS]
        room = max(0, self._most - max(behind) - sum(number for _, number in self._gone))
        self._gone.append((now, room))
        return room

    async def _left(self, group: str, topic: str) -> int:
        """Return how many records a group has left to read; above `_most` the number may be too low.

        The lag includes transaction markers and aborted records, which nobody will read. So the records themselves are
        counted when the lag is small or does not change.
        """
        ends = await self._log.ends(topic)
        lags = await self._log.lags(group, topic, ends)
        before, self._before[group] = self._before.get(group), lags
        if (lag := sum(lags.values())) > self._most and before != lags:
            return lag
        count = 0
        async with aclosing(self._log.unread(group, topic, ends)) as records:
            async for _ in records:
                count += 1
                if count == self._most:
                    break
        return count
