"""Admission of partitions by the layout of their source, for a plain consumer of a group.

What is archived of a conversation is ordered by the offsets of one partition. When the topic gets more partitions, keys
move to other ones, whose offsets begin at 0: an edit there would look older than the message that it changes.
"""

import asyncio
from collections.abc import Iterable

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from afterword.streams.runtime import EngineMetrics
from afterword.streams.runtime.errors import TRANSIENT
from afterword.streams.runtime.layouts import GROWN, Layout, Layouts, encode_layout, read_layout
from afterword.streams.runtime.options import Clients, Options

log = structlog.get_logger(__name__)

RETRY_SECONDS = 1.0


class Admission:
    """Keeps partitions paused that the layout does not admit, and all until it is known.

    `look_seconds`: interval of the looks at the source.
    """

    def __init__(
        self,
        clients: Clients,
        group: str,
        topic: str,
        metrics: EngineMetrics,
        look_seconds: float = Options.source_look_seconds,
    ) -> None:
        self._clients = clients
        self._group = group
        self._topic = topic
        self._layouts = Layouts(metrics)
        self._look_seconds = look_seconds
        self._assigned = asyncio.Event()
        self._consumer: AIOKafkaConsumer | None = None
        self._layout: Layout | None = None

    @property
    def unready_reason(self) -> str:
        """Reason why not all is read, in a word; empty if all is."""
        if self._layout is None:
            return "layout_unknown"
        return GROWN if self._layouts.grown else ""

    def admits(self, source: TopicPartition) -> bool:
        return self._layout is not None and self._layout.admits(source.partition)

    def attach(self, consumer: AIOKafkaConsumer) -> None:
        """Take the consumer, which may have partitions already."""
        self._consumer = consumer
        self.hold(consumer.assignment())

    def hold(self, sources: Iterable[TopicPartition]) -> None:
        """Pause partitions that were assigned; the next look lets go of those that are admitted."""
        if self._consumer is not None:
            self._consumer.pause(*sources)
            self._assigned.set()

    def commits(self, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets with the layout that they belong to."""
        metadata = encode_layout(self._layout.partitions if self._layout else 0)
        return {source: OffsetAndMetadata(offset, metadata) for source, offset in offsets.items()}

    async def watch(self) -> None:
        """Look at regular intervals, and when partitions were assigned, until cancelled."""
        while True:
            wait = self._look_seconds
            self._assigned.clear()
            try:
                await self._look()
            except (*TRANSIENT, AssertionError) as error:  # AssertionError: a broker that starts names none yet
                wait, name = RETRY_SECONDS, type(error).__name__
                log.warning("layout_unknown", stage="consume", topic=self._topic, error_type=name)
            try:
                async with asyncio.timeout(wait):
                    await self._assigned.wait()
            except TimeoutError:
                continue

    async def _look(self) -> None:
        consumer = self._consumer
        if consumer is None:
            return
        self._layout = layout = await read_layout(self._clients, consumer, self._group, self._topic)
        self._layouts.note(self._topic, layout)
        assigned = consumer.assignment()
        consumer.resume(*(source for source in assigned if layout.admits(source.partition)))
        consumer.pause(*(source for source in assigned if not layout.admits(source.partition)))
