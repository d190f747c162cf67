"""The summarizer's Faust agents: at least once, many conversations concurrently, each of them in order."""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog
from aiokafka.errors import KafkaError
from faust.exceptions import ProducerSendError
from opentelemetry.trace import Span, SpanKind, Tracer, get_current_span
from structlog.contextvars import bound_contextvars

from afterword.schemas import InvalidRecord, SummaryCreated, decode_episode
from afterword.schemas.dead_letters import dead_letter
from afterword.schemas.headers import Headers, KafkaRecord, cloud_event
from afterword.schemas.summaries import SUMMARY_CREATED
from afterword.streams.errors import EpisodeConflict, ProviderError
from afterword.streams.runtime import App, AtLeastOnce
from afterword.streams.runtime.at_least_once import Hold
from afterword.streams.runtime.options import wall_clock_ms
from afterword.streams.settings import Kafka, Retry
from afterword.streams.summarizer.lanes import Lanes
from afterword.streams.summarizer.pipeline import Pipeline
from afterword.streams.summarizer.retries import PREFIX, Try, first_try, headers_of, next_try, try_from
from afterword.streams.summarizer.retries import STAGE as RETRY_STAGE
from afterword.streams.summarizer.steps import StepRunner
from afterword.streams.summarizer.summary import is_replaceable
from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.metrics import error_type as bounded
from afterword.streams.telemetry.tracing import context_of, mark_failed, open_span, trace_in, traceparent

STAGE = "summarizer"
CE_SOURCE = "afterword/summarizer"
RAW = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}
RETRIES_IN_FLIGHT = 1
"""Retries at a time for each partition: they stay in order, and new episodes have almost all of the LLM's capacity."""

LaneKey = tuple[str, int, bytes | None]
"""Topic, partition and record key."""

log = structlog.get_logger()


def attach(app: App, kafka: Kafka, handler: "RecordHandler", hold: Hold) -> Lanes[LaneKey]:
    """Register the agents. Returns their lanes, to be drained when the app has stopped.

    `hold`: awaited before a record of `episode.retry` is handled.
    """
    crashes: set[asyncio.Task[None]] = set()

    def crash(_: LaneKey, error: BaseException) -> None:
        log.error("summarizer_failed", stage=STAGE, error_type=type(error).__name__)
        crashes.add(asyncio.ensure_future(app.crash(error)))

    lanes = Lanes[LaneKey](crash)  # the engine bounds the records in flight for each partition
    retries = AtLeastOnce(max_in_flight=RETRIES_IN_FLIGHT, hold=hold)

    @app.agent(app.topic(kafka.episodes_topic, schema=AtLeastOnce()), name="summarizer")  # type: ignore[untyped-decorator]
    async def summarize(stream: AsyncIterable[Any]) -> None:
        async for event in stream.noack().events():  # type: ignore[attr-defined]
            lanes.submit(lane_of(event.value), partial(handler.summarize, event))

    @app.agent(app.topic(kafka.retry_topic, schema=retries), name="retries")  # type: ignore[untyped-decorator]
    async def replace_fallbacks(stream: AsyncIterable[Any]) -> None:
        async for event in stream.noack().events():  # type: ignore[attr-defined]
            lanes.submit(lane_of(event.value), partial(handler.replace_fallback, event))

    @app.on_partitions_revoked.connect  # type: ignore[untyped-decorator]
    async def cancel(*_: Any, **__: Any) -> None:
        # the engine has waited as long as it may: the next owner handles the rest
        await lanes.cancel(lambda _: True)

    return lanes


def lane_of(record: KafkaRecord) -> LaneKey:
    return record.topic, record.partition, record.key


class Outputs:
    """Kafka topics that the summarizer writes. Each method returns after the acknowledgement. Raises: KafkaError."""

    def __init__(self, app: App, kafka: Kafka, metrics: Metrics) -> None:
        self._metrics = metrics
        self._summaries = app.topic(kafka.summaries_topic, **RAW)
        self._retries = app.topic(kafka.retry_topic, **RAW)
        self._dead_letters = app.topic(kafka.dead_letters(kafka.episodes_topic), **RAW)

    async def publish(self, summary: SummaryCreated) -> None:
        headers = cloud_event(SUMMARY_CREATED, summary.event_id, CE_SOURCE, summary.created_at)
        headers += traceparent(get_current_span())
        await _send(self._summaries, summary.conversation_id.encode(), summary.to_json(), headers)
        count_summary(self._metrics, summary)

    async def retry(self, record: KafkaRecord, attempt: Try) -> None:
        """Write the episode's own record to `episode.retry`."""
        original = [(name, value) for name, value in record.headers if not name.startswith(PREFIX)]
        await _send(self._retries, record.key, record.value, original + headers_of(attempt))

    async def send_to_dlq(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        await _send(self._dead_letters, key, value, headers)


def count_summary(metrics: Metrics, summary: SummaryCreated) -> None:
    reason = summary.quality.reason
    metrics.summaries.labels(summary.quality.source, bounded(reason) if reason else "").inc()


async def _send(topic: Any, key: bytes | None, value: bytes | None, headers: Headers) -> None:
    """Send and wait for the acknowledgement. Raises: KafkaError, with a note of the topic, as few answers name it."""
    try:
        await (await topic.send(key=key, value=value, headers=headers))
    except (ProducerSendError, KafkaError) as error:
        cause = error.__cause__ if isinstance(error, ProducerSendError) else error
        raised = cause if isinstance(cause, KafkaError) else KafkaError(str(error))
        raised.add_note(f"topic {topic.get_topic_name()}")
        raise raised from None


class RecordHandler:
    """Handles records of `episode.closed` and `episode.retry`. An error that it does not handle stops the worker."""

    def __init__(
        self,
        pipeline: Pipeline,
        outputs: Outputs,
        steps: StepRunner,
        retry: Retry,
        metrics: Metrics,
        tracer: Tracer,
        group: str,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`group`: the consumer group, for spans."""
        self._pipeline = pipeline
        self._outputs = outputs
        self._steps = steps
        self._retry = retry
        self._metrics = metrics
        self._tracer = tracer
        self._group = group
        self._clock_ms = clock_ms

    async def summarize(self, event: Any) -> None:
        """Acknowledge the record when its summary is published, and a retry scheduled for a fallback; or on the DLQ."""
        await self._handle(event.value, self._summarize)
        event.ack()

    async def replace_fallback(self, event: Any) -> None:
        """Acknowledge the record when the LLM's summary is published, or the next retry is written or none is left."""
        await self._handle(event.value, self._replace_fallback)
        event.ack()

    async def _summarize(self, record: KafkaRecord) -> None:
        episode = decode_episode(record.key, record.value)
        with bound_contextvars(episode_id=episode.episode_id):
            summary = await self._pipeline.process(episode)
        # after publishing: a reader of the replacement has already read the summary that it supersedes
        if summary.made_from == episode.revision and is_replaceable(summary.quality):
            await self._schedule(record, first_try(self._retry, self._now()))

    async def _replace_fallback(self, record: KafkaRecord) -> None:
        episode, attempt = decode_episode(record.key, record.value), try_from(record.headers)
        fields = {"stage": RETRY_STAGE, "episode_id": episode.episode_id, "attempt": attempt.number}
        try:
            with bound_contextvars(episode_id=episode.episode_id):
                await self._pipeline.replace_fallback(episode)
        except ProviderError as error:
            following = next_try(attempt, error, self._retry, self._now())
            await self._schedule(record, following)
            problem = {"error_type": error.error_type, "problem": str(error), "last": following is None}
            log.warning("fallback_kept", **fields, **problem)
        else:
            log.info("fallback_replaced", **fields)

    async def _schedule(self, record: KafkaRecord, attempt: Try | None) -> None:
        if attempt is not None:
            await self._steps.retry_until_success("retry", lambda: self._outputs.retry(record, attempt))

    async def _handle(self, record: KafkaRecord, step: Callable[[KafkaRecord], Awaitable[None]]) -> None:
        """Run the step; a record that it rejects goes to the dead-letter queue."""
        position = bound_contextvars(topic=record.topic, partition=record.partition, offset=record.offset)
        with position, self._span(record):
            try:
                await step(record)
            except InvalidRecord as error:
                await self._send_to_dlq(record, error.error_type, error.detail)
            except EpisodeConflict as error:
                await self._send_to_dlq(record, error.error_type, str(error))

    async def _send_to_dlq(self, record: KafkaRecord, error_type: str, problem: str) -> None:
        log.warning("record_rejected", stage=STAGE, error_type=error_type, problem=problem)
        rejected = dead_letter(record, stage=STAGE, error_type=error_type, message=problem, now_ms=self._clock_ms())
        await self._steps.retry_until_success("dead_letter", lambda: self._outputs.send_to_dlq(*rejected))
        self._metrics.count_dead_letters(STAGE, error_type)
        mark_failed(get_current_span(), error_type)

    def _span(self, record: KafkaRecord) -> AbstractContextManager[Span]:
        """Open a consumer span that continues the record's trace."""
        attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": record.topic,
            "messaging.destination.partition.id": str(record.partition),
            "messaging.kafka.offset": record.offset,
            "messaging.consumer.group.name": self._group,
        }
        context = context_of(trace_in(record.headers))
        return open_span(self._tracer, f"process {record.topic}", SpanKind.CONSUMER, attributes, context=context)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock_ms() / 1000, UTC)
