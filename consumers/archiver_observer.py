"""Who is told how the archiver fares: nobody, or the metrics and the traces."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from aiokafka import ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from opentelemetry.trace import NoOpTracer, SpanKind, Tracer

from afterword.streams.runtime import EngineMetrics
from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.spans import STEP, current, links
from afterword.streams.telemetry.tracing import trace_in

ARCHIVE = "archive"
"""The only step."""


class Observer:
    """Does nothing; override what is of interest. Nothing of it may raise, nor let through what it is told."""

    def batch(self, _records: Sequence[ConsumerRecord]) -> AbstractContextManager[object]:
        """Around all that is done about these records, up to their commit."""
        return nullcontext()

    def writing(self, _messages: int) -> AbstractContextManager[object]:
        """Around one write, from its first attempt until it is done."""
        return nullcontext()


class Telling(Observer):
    """A batch is a span that links the messages' own; the write in it is another one, and is measured."""

    def __init__(self, metrics: Metrics, tracer: Tracer | None, topic: str, group: str) -> None:
        self._tracer = tracer or NoOpTracer()
        self._seconds = metrics.step_seconds.labels(ARCHIVE)
        self._name = f"process {topic}"
        self._attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": topic,
            "messaging.consumer.group.name": group,
        }

    def batch(self, records: Sequence[ConsumerRecord]) -> AbstractContextManager[object]:
        attributes = self._attributes | {"messaging.batch.message_count": len(records)}
        traces = links(trace_in(record.headers) for record in records)
        return current(self._tracer, self._name, SpanKind.CONSUMER, attributes, links=traces)

    @contextmanager
    def writing(self, messages: int) -> Iterator[None]:
        began = time.monotonic()
        attributes = {STEP: ARCHIVE, "afterword.message_count": messages}
        with current(self._tracer, ARCHIVE, SpanKind.INTERNAL, attributes):
            yield
        self._seconds.observe(time.monotonic() - began)


class Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is not typed
    """Tells how long each took, as the engine does for the other roles."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._began = time.monotonic()

    def on_partitions_revoked(self, _revoked: Iterable[TopicPartition]) -> None:
        self._began = time.monotonic()

    def on_partitions_assigned(self, _assigned: Iterable[TopicPartition]) -> None:
        self._metrics.rebalanced(time.monotonic() - self._began)
