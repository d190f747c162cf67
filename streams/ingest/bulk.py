"""Bulk sources give way: their records go on only as far as segmenter and summarizer are hardly behind."""

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
"""Time for a look at what the groups have left; longer counts as behind."""
SEEN_SECONDS = 0.25
"""Time until records that went on count as lag: they are in a transaction first."""
EPISODE_MESSAGES = 10
"""Messages for which an episode of lag counts: the default trigger."""


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
        """Records that went on lately, each time with the moment."""

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
        """Count what a group has left to do, up to the most that matters.

        Marks and aborted records of transactions are lag, too, although nobody will read them. So records are counted
        where the lag is small, or stands still.
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
