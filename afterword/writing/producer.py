"""Sends typed messages to the topic `messages`, for Python services and for `afterword produce`."""

import asyncio
import time
from collections.abc import AsyncIterable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, Self, TypedDict, Unpack

from opentelemetry.trace import NoOpTracer, Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from afterword.schemas import (
    ConversationAssigned,
    ConversationDeleted,
    ConversationFlush,
    InputEvent,
    MessageCreated,
    MessageDeleted,
    MessageEdited,
)
from afterword.schemas.records import CE_ID, SOURCE, ProducerRecord, header, to_record
from afterword.streams.kafka.clients import (
    IdempotentProducer,
    broker_errors,
    client_options,
    connection_of,
    noting_address,
    require_topics,
    running_producer,
)
from afterword.streams.settings import Kafka, Settings, load_settings
from afterword.streams.tasks import OwnLoop, paced

Acknowledgement = asyncio.Future[Any]


class EditedFields(TypedDict, total=False):
    """Fields of a message that an edit may replace. A `sentiment` of None makes it unknown."""

    content: str
    metadata: dict[str, Any]
    sentiment: float | None
    flows: Sequence[str]
    tools: Sequence[str]
    skip_summarization: bool
    edited_at: datetime


class WrittenAt(NamedTuple):
    """The position of an acknowledged record on the topic."""

    partition: int
    offset: int


class Producer:
    """Sends typed messages, each with its conversation's key and to its partition:

        async with Producer(bootstrap_servers="kafka:9092") as producer:
            await producer.send(message)
            await producer.flush(message.conversation_id)

    The producer is idempotent and uses `acks=all`: once `send` has returned, the message cannot be lost, and the
    client's retries write it only once. Partitions are chosen by murmur2 of the key, as in the Java client.

    `source` is for the CloudEvents headers. `tracer` makes a span for each record, below the current span, and names it
    in the header `traceparent`, so that the trace continues through the segmenter and the summarizer. `options` are
    further arguments of `AIOKafkaProducer`, such as `compression_type` or `security_protocol`.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        topic: str = "messages",
        source: str = SOURCE,
        tracer: Tracer | None = None,
        **options: Any,
    ) -> None:
        self._kafka = Kafka(bootstrap_servers=bootstrap_servers)
        self._topic = topic
        self._source = source
        self._tracer = tracer or NoOpTracer()
        self._options = options
        self._running = AsyncExitStack()
        self._finds_settings = False
        self._loop = OwnLoop("Producer")
        self._client: IdempotentProducer
        self._failure: BaseException | None = None
        """Why a record that was enqueued could not be delivered, until it is raised."""

    @classmethod
    def from_settings(cls, settings: Settings | None = None, **options: Any) -> Self:
        """Build a producer for the servers, topic, TLS and SASL of the settings; None loads them.

        Raises: ConfigurationError.
        """
        kafka = (settings or load_settings()).kafka
        made = cls(**{**client_options(kafka), "topic": kafka.messages_topic, **options})
        made._kafka = made._kafka.answering_within(kafka.answer_seconds)
        made._finds_settings = settings is None
        return made

    async def __aenter__(self) -> Self:
        """Connect. Raises: BrokerUnavailable, TopicMissing."""
        self._loop = OwnLoop("Producer")
        self._loop.require()
        with noting_address(self._finds_settings):
            await require_topics(self._kafka, self._topic, **connection_of(self._options))
        self._client = await self._running.enter_async_context(running_producer(self._kafka, **self._options))
        self._failure = None
        return self

    async def __aexit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Wait for all acknowledgements. Raises: BrokerUnavailable, unless the block ended with an error."""
        async with self._running:
            if error is None:
                await self.drain()

    async def send(self, event: InputEvent) -> None:
        """Send an event, and return once the broker has acknowledged it. Raises: BrokerUnavailable, OtherLoop."""
        await self.send_all([event])

    async def send_all(self, events: Sequence[InputEvent | ProducerRecord]) -> list[WrittenAt]:
        """Send events, keeping each conversation's order. Returns their positions once all are acknowledged.

        Raises: BrokerUnavailable. In that case some events may have been written; a repeated message is dropped as a
        duplicate.
        """
        with broker_errors(self._kafka.bootstrap_servers):
            deliveries = [await self._deliver(event) async for event in paced(events)]
            # shielded, because a caller that gives up cannot take the records back
            await asyncio.shield(asyncio.gather(*deliveries, return_exceptions=True))
            done = [delivery.result() for delivery in deliveries]
        return [WrittenAt(record.partition, record.offset) for record in done]

    async def stream(
        self, message: MessageCreated, parts: AsyncIterable[str], every_seconds: float = 1.0
    ) -> MessageCreated:
        """Send a message while it is written: its `content` and the `parts` after it. Returns the whole message.

        The text so far is sent at most every so many seconds, and the last text always, even if `parts` raises or the
        caller is cancelled. `episodes.on_changed_repeat` has to be `edit`. Raises: BrokerUnavailable, and what `parts`
        raises.
        """
        sent_at, is_begun = time.monotonic(), False
        try:
            async for part in parts:
                message = message.model_copy(update={"content": message.content + part})
                if time.monotonic() >= sent_at + every_seconds:
                    await self.send(message)
                    sent_at, is_begun = time.monotonic(), True
        finally:
            if is_begun:
                await asyncio.sleep(sent_at + every_seconds - time.monotonic())
            if message.content:
                await self.send(message)
        return message

    async def flush(
        self,
        conversation_id: str,
        *,
        agent_id: str | None = None,
        tenant_id: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Close a conversation's pending messages, or only one agent's if `agent_id` is given.

        `tenant_id` must be that of the conversation's messages, or the flush is dead-lettered.

        Raises: BrokerUnavailable.
        """
        await self.send(
            ConversationFlush(conversation_id=conversation_id, agent_id=agent_id, tenant_id=tenant_id, reason=reason)
        )

    async def edit(
        self, conversation_id: str, message_id: str, *, tenant_id: str | None = None, **changes: Unpack[EditedFields]
    ) -> None:
        """Replace fields of a message that was sent. Other fields are unchanged.

        `tenant_id` must be that of the message. With another one, or for an unknown message, the edit is dead-lettered.

        Raises: BrokerUnavailable; ValidationError if the changes are invalid or there are none.
        """
        fields = {"id": message_id, "conversation_id": conversation_id, "tenant_id": tenant_id}
        await self.send(MessageEdited.model_validate({**fields, **changes}, strict=False))

    async def delete(
        self, conversation_id: str, message_id: str, *, tenant_id: str | None = None, reason: str | None = None
    ) -> None:
        """Delete a message from the archive, its episode, its summary and the index. `tenant_id` is as for `edit`.

        Raises: BrokerUnavailable.
        """
        await self.send(
            MessageDeleted(id=message_id, conversation_id=conversation_id, tenant_id=tenant_id, reason=reason)
        )

    async def delete_conversation(
        self, conversation_id: str, *, tenant_id: str | None = None, reason: str | None = None
    ) -> None:
        """Delete all messages of a conversation so far, from everywhere. `tenant_id` is as for `edit`.

        Raises: BrokerUnavailable.
        """
        await self.send(ConversationDeleted(conversation_id=conversation_id, tenant_id=tenant_id, reason=reason))

    async def assign(
        self,
        conversation_id: str,
        from_user_id: str,
        user_id: str,
        *,
        tenant_id: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Give one user's messages in a conversation to another. `tenant_id` is as for `edit`.

        Raises: BrokerUnavailable; ValidationError if both are the same user.
        """
        users = {"from_user_id": from_user_id, "user_id": user_id}
        await self.send(
            ConversationAssigned(conversation_id=conversation_id, tenant_id=tenant_id, reason=reason, **users)
        )

    async def enqueue(self, event: InputEvent | ProducerRecord) -> None:
        """Send an event, and return once it is in the client's buffer.

        If the broker refuses it later, the next `enqueue` or `drain` raises the error. Raises: BrokerUnavailable.
        """
        if self._failure is not None:
            await self.drain()
        with broker_errors(self._kafka.bootstrap_servers):
            delivery = await self._deliver(event)
        delivery.add_done_callback(self._remember)

    def _remember(self, delivery: Acknowledgement) -> None:
        if not delivery.cancelled():
            self._failure = self._failure or delivery.exception()

    async def drain(self) -> None:
        """Wait until the broker has acknowledged everything that was enqueued. Raises: BrokerUnavailable, OtherLoop."""
        self._loop.require()
        with broker_errors(self._kafka.bootstrap_servers):
            await self._client.flush()
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

    async def _deliver(self, event: InputEvent | ProducerRecord) -> Acknowledgement:
        """Send an event, waiting only while the client's buffer is full. Its span ends with its acknowledgement."""
        self._loop.require()
        record = event if isinstance(event, ProducerRecord) else to_record(event, datetime.now(UTC), self._source)
        attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": self._topic,
            "messaging.message.id": header(record.headers, CE_ID) or "",
        }
        span = self._tracer.start_span(f"send {self._topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span))
        headers = [*record.headers, *((name, value.encode()) for name, value in carrier.items())]
        try:
            delivery: Acknowledgement = await self._client.send(
                self._topic, record.value, key=record.conversation_id.encode(), headers=headers
            )
        except BaseException as error:
            _end(span, error)
            raise
        delivery.add_done_callback(partial(_delivered, span))
        return delivery


def _delivered(span: Span, delivery: Acknowledgement) -> None:
    error = None if delivery.cancelled() else delivery.exception()
    if error is None and not delivery.cancelled():
        written = delivery.result()
        span.set_attribute("messaging.destination.partition.id", str(written.partition))
        span.set_attribute("messaging.kafka.offset", written.offset)
    _end(span, error)


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:  # the error's text may quote the record
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR))
    span.end()
