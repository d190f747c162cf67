"""Records on their way to the topic `messages`."""

import asyncio
import time
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Tracer

from afterword.lines import Outgoing
from afterword.schemas.headers import CE_ID, header
from afterword.streams.telemetry.spans import failed, type_of
from afterword.streams.telemetry.tracing import traceparent


class Sender:
    """Sends without waiting for each acknowledgement, at `rate` records a second at most.

    Each record begins a trace, and names it in its header `traceparent`: the segmenter continues that of an episode's
    last message and links those of the others. Its span ends with the acknowledgement.
    """

    def __init__(self, producer: AIOKafkaProducer, topic: str, rate: float | None, tracer: Tracer) -> None:
        self._producer = producer
        self._topic = topic
        self._rate = rate
        self._tracer = tracer
        self._started = time.monotonic()
        self._sent = 0
        self._failure: BaseException | None = None

    async def send(self, record: Outgoing) -> None:
        """Waits only while the producer's buffer is full, or for the rate."""
        await self._pace()
        span = self._span(record)
        headers = [*record.headers, *traceparent(span)]
        try:
            delivery = await self._producer.send(
                self._topic, record.value, key=record.conversation_id.encode(), headers=headers
            )
        except BaseException as error:
            end(span, error)
            raise
        delivery.add_done_callback(partial(self._delivered, span))
        self._sent += 1

    async def finish(self) -> None:
        """Waits for every acknowledgement. Raises: KafkaError when one did not come."""
        await self._producer.flush()
        if self._failure is not None:
            raise self._failure

    def _span(self, record: Outgoing) -> Span:
        attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": self._topic,
            "messaging.message.id": header(record.headers, CE_ID) or "",
        }
        name = f"send {self._topic}"
        return self._tracer.start_span(name, context=Context(), kind=SpanKind.PRODUCER, attributes=attributes)

    def _delivered(self, span: Span, delivery: asyncio.Future[Any]) -> None:
        error = None if delivery.cancelled() else delivery.exception()
        self._failure = self._failure or error
        if error is None and not delivery.cancelled():
            written = delivery.result()
            span.set_attribute("messaging.destination.partition.id", str(written.partition))
            span.set_attribute("messaging.kafka.offset", written.offset)
        end(span, error)

    async def _pace(self) -> None:
        if self._rate:
            ahead = self._started + self._sent / self._rate - time.monotonic()
            if ahead > 0:
                await asyncio.sleep(ahead)


def end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        failed(span, type_of(error))
    span.end()
