"""Makes bulk sources yield: their records are read only while segmenter and summarizer are hardly behind."""

import asyncio
from collections.abc import Mapping

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from afterword.streams.log_reader import Log, TopicStalled
from afterword.streams.settings import Settings

LOOK_SECONDS = 10.0
"""Time for checking the groups' lag; if it takes longer, they count as behind."""
EPISODES = 0.1
"""How many episodes the summarizer may be behind, as a fraction of the messages."""


class BulkGate:
    """Says how many records of bulk sources may be read now."""

    def __init__(self, log: Log, settings: Settings) -> None:
        kafka, most = settings.kafka, settings.ingest.bulk_lag
        self._log = log
        self._most = most
        self._watched = (
            (kafka.segmenter_id, kafka.messages_topic, most),
            (kafka.summarizer_id, kafka.episodes_topic, max(1, int(most * EPISODES))),
        )
        self._before: dict[str, Mapping[TopicPartition, int]] = {}

    async def room(self) -> int:
        """Return how many records may be read; 0 while a group is behind, or Kafka does not answer."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                behind = [await self._is_behind(*watched) for watched in self._watched]
        except (KafkaError, TopicStalled, TimeoutError):
            return 0
        return 0 if any(behind) else self._most

    async def _is_behind(self, group: str, topic: str, most: int) -> bool:
        """Return whether a group has more than `most` records of a topic left to process.

        Transaction markers and aborted records count as lag although nobody will read them. So where the lag does not
        change, the records are counted.
        """
        ends = await self._log.ends(topic)
        lags = await self._log.lags(group, topic, ends)
        if sum(lags.values()) <= most:
            return False
        before, self._before[group] = self._before.get(group), lags
        if before != lags:
            return True
        count = 0
        async for _ in self._log.unread(group, topic, ends):
            count += 1
            if count > most:
                return True
        return False
