"""Guard of a plain consumer against a source that got more partitions.

What is archived of a conversation is ordered by the offsets of one partition. When the topic gets more partitions, keys
move to other ones, whose offsets begin at 0: an edit there would look older than the message that it changes.
"""

import asyncio
import time
from collections.abc import Mapping

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from afterword.streams.runtime.errors import FATAL, TRANSIENT
from afterword.streams.runtime.options import Clients, Options
from afterword.streams.runtime.sources import check_partitions, encode_partitions

log = structlog.get_logger(__name__)

RETRY_SECONDS = 1.0


class GrowthGuard:
    """Checks the source's number of partitions, which it also puts into the metadata of the group's commits.

    `look_seconds`: interval of the checks.
    """

    def __init__(
        self, clients: Clients, group: str, topic: str, look_seconds: float = Options.source_look_seconds
    ) -> None:
        self._clients = clients
        self._group = group
        self._topic = topic
        self._look_seconds = look_seconds
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._next_look = 0.0
        self._partitions = 0

    async def check(self, consumer: AIOKafkaConsumer) -> None:
        """Check when other partitions were assigned, and at regular intervals; wait until the broker answers.

        Raises: SourceGrown, KafkaError for what no retry can change.
        """
        assigned = frozenset(consumer.assignment())
        while assigned != self._assigned or time.monotonic() >= self._next_look:
            try:
                self._partitions = await check_partitions(self._clients, consumer, self._group, self._topic)
                self._assigned, self._next_look = assigned, time.monotonic() + self._look_seconds
            except FATAL:
                raise
            except (*TRANSIENT, AssertionError) as error:  # AssertionError: a broker that starts names none yet
                log.warning("source_not_checked", stage="consume", topic=self._topic, error_type=type(error).__name__)
                await asyncio.sleep(RETRY_SECONDS)

    def commits(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets with the number of partitions, once that is known."""
        metadata = encode_partitions(self._partitions) if self._partitions else ""
        return {source: OffsetAndMetadata(offset, metadata) for source, offset in offsets.items()}
