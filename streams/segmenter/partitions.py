"""Conversations that begin elsewhere than in the standard partition: producers that differ split conversations."""

from collections.abc import Iterable

import structlog
from aiokafka.partitioner import murmur2

log = structlog.get_logger()

POSITIVE = 0x7FFFFFFF


def standard_partition(key: bytes, partitions: int) -> int:
    """Return the partition that Java's client, aiokafka and others choose for the key."""
    return int(murmur2(key) & POSITIVE) % partitions


class PartitionerCheck:
    """Counts conversations that began in another partition than the standard one, and warns once of each partition."""

    def __init__(self) -> None:
        self._warned: set[int] = set()

    def elsewhere(self, begun: Iterable[bytes], topic: str, partition: int, partitions: int | None) -> int:
        """Return how many of the conversations, given by their records' keys, began in another partition.

        `partitions`: of the topic; None while that is not known.
        """
        if not partitions:
            return 0
        found = [standard for key in begun if (standard := standard_partition(key, partitions)) != partition]
        if found and partition not in self._warned:
            self._warned.add(partition)
            where = {"topic": topic, "partition": partition, "standard_partition": found[0]}
            log.warning("conversation_in_another_partition", stage="segmenter", error_type="other_partitioner", **where)
        return len(found)
