"""Layout of a source: the number of partitions over which its keys were spread when its records were read.

When a topic gets more partitions, keys move to other ones, away from the state that was made of them. The group's
commits name the layout, so that a source with another one is not read as if nothing had happened, by a worker that runs
or by one that starts.
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import structlog
from aiokafka.errors import UnknownTopicOrPartitionError

from afterword.streams.runtime.errors import SourceGrown
from afterword.streams.runtime.metrics import EngineMetrics
from afterword.streams.runtime.options import Clients

log = structlog.get_logger()

METADATA = re.compile(r"partitions=([1-9]\d{0,8})")
GROWN = "source_grown"
"""Reason why a worker is not ready."""


def encode_layout(partitions: int) -> str:
    """Return the metadata of a commit; empty for a layout that is not known (0)."""
    return f"partitions={partitions}" if partitions else ""


def decode_layout(metadata: str) -> int | None:
    """Return the number of partitions in a commit's metadata; None if it names none."""
    found = METADATA.fullmatch(metadata)
    return int(found[1]) if found else None


class Layout(NamedTuple):
    """Layouts that a group's commits name, and the number of partitions that the source has now."""

    recorded: frozenset[int]
    found: int

    @property
    def grown(self) -> bool:
        """True if the source has more partitions than the state was made with. With fewer it was recreated."""
        return any(partitions < self.found for partitions in self.recorded)

    @property
    def partitions(self) -> int:
        """The layout under which partitions that are admitted are read."""
        return min(self.recorded) if self.grown else self.found

    def admits(self, partition: int) -> bool:
        """Return whether the partition can be read.

        Of a source that grew to a multiple, the old partitions: keys have only moved from them to new ones. While a
        part of the commits has another layout than the rest, the state is being handed over, and nothing is read.
        """
        if not self.grown:
            return True
        before = self.partitions
        return len(self.recorded) == 1 and self.found % before == 0 and partition < before


async def read_layout(clients: Clients, kafka: Any, group: str, topic: str) -> Layout:
    """Ask for the layout. `kafka`: the group's aiokafka consumer. Raises: KafkaError, OSError, TimeoutError."""
    admin = clients.admin()
    await admin.start()
    try:
        described = await admin.describe_topics([topic])
    finally:
        await admin.close()
    number = len(described[0]["partitions"])
    if not number:
        raise UnknownTopicOrPartitionError(topic)
    return layout_of(await clients.metadata(kafka, group, topic, number), number)


def layout_of(metadata: Iterable[str], partitions: int) -> Layout:
    """Return the layout by the metadata of a group's commits, and the number of partitions that there are."""
    return Layout(frozenset(filter(None, map(decode_layout, metadata))), partitions)


class Layouts:
    """Layouts of an app's sources as of the last look; a source that grew is told of once."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._known: dict[str, Layout] = {}

    @property
    def grown(self) -> bool:
        return any(layout.grown for layout in self._known.values())

    def note(self, topic: str, layout: Layout) -> None:
        """Keep what was found, count it and log it."""
        before = self._known.get(topic)
        self._known[topic] = layout
        self._metrics.grown(topic, layout.grown)
        if layout.grown and layout != before:
            error = SourceGrown(topic=topic, found=layout.found, expected=layout.partitions)
            log.error(
                GROWN, topic=topic, stage="consume", error_type=error.error_type, error=" ".join(str(error).split())
            )


async def look_at_layouts(app: Any) -> None:
    """Tell each partition of a source with state which layout it has now. Raises: KafkaError, OSError, TimeoutError."""
    consumer = app.consumer
    subscribed = consumer.kafka.subscription()
    topics = sorted({topic for table in app.tables.values() for topic in subscribed if table.takes(topic)})
    for topic in topics:
        layout = await read_layout(consumer.clients(), consumer.kafka, app.conf.id, topic)
        consumer.layouts.note(topic, layout)
        for source, partition in list(consumer.partitions.items()):
            if source.topic == topic:
                partition.follow(layout)
