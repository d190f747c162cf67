"""The summarizer's Faust agents: at least once, many conversations concurrently, each of them in order."""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from opentelemetry.trace import Span, SpanKind, Tracer, get_current_span
from structlog.contextvars import bound_contextvars

from afterword.schemas import (
    EpisodeAmended,
    EpisodeClosed,
    EpisodeRedo,
    InvalidRecord,
    SummaryCreated,
    SummaryDeleted,
    decode_closed,
)
from afterword.schemas.dead_letters import UNFORESEEN, dead_letter
from afterword.schemas.headers import Headers, KafkaRecord, cloud_event, owner_header
from afterword.schemas.summaries import SUMMARY_CREATED, SUMMARY_DELETED
from afterword.streams.errors import BrokerUnavailable, EpisodeConflict, ProviderError
from afterword.streams.kafka import admin_client
from afterword.streams.runtime import App, AtLeastOnce, joining
from afterword.streams.runtime.at_least_once import Hold
from afterword.streams.runtime.attempts import Attempts
from afterword.streams.runtime.committed import CommittedOffsets, committed_offsets
from afterword.streams.runtime.errors import place_of
from afterword.streams.runtime.options import wall_clock_ms
from afterword.streams.settings import Kafka, Retry
from afterword.streams.summarizer.amending import Amendments, NotArchived, NotRedone
from afterword.streams.summarizer.lanes import Lanes
from afterword.streams.summarizer.pipeline import Pipeline
from afterword.streams.summarizer.retries import (
    PREFIX,
    Try,
    first_try,
    headers_of,
    next_try,
    put_aside,
    try_from,
    waits_for_archive,
)
from afterword.streams.summarizer.retries import STAGE as RETRY_STAGE
from afterword.streams.summarizer.summary import is_replaceable
from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.metrics import known_error_type as bounded
from afterword.streams.telemetry.tracing import context_of, mark_failed, open_span, trace_in, traceparent

STAGE = "summarizer"
CE_SOURCE = "afterword/summarizer"
RAW = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}
RETRIES_IN_FLIGHT = 8
"""Records of `episode.retry` at a time for each partition, of which one is a fallback.

So fallbacks stay in order, and new episodes have almost all of the LLM's capacity.
"""

KNOWN_SECONDS = 10.0
"""Time after which the archiver's offsets are read again."""

LaneKey = tuple[str, int, bytes | None]
"""Topic, partition and record key."""

log = structlog.get_logger()


def attach_summarizer(app: App, kafka: Kafka, handler: "RecordHandler", hold: Hold) -> Lanes[LaneKey]:
    """Register the agents. Returns their lanes, to be drained when the app has stopped.

    `hold`: awaited before a record of `episode.retry` is handled.
    """
    crashes: set[asyncio.Task[None]] = set()

    def crash(_: LaneKey, error: BaseException) -> None:
        log.error("summarizer_failed", stage=STAGE, error_type=type(error).__name__)
        crashes.add(asyncio.ensure_future(app.crash(error)))

    lanes = Lanes[LaneKey](crash)  # the engine bounds the records in flight for each partition
    retries, episodes = retries_schema(hold), AtLeastOnce(order=lane_of)

    @app.agent(app.topic(kafka.episodes_topic, schema=episodes), name="summarizer")  # type: ignore[untyped-decorator]
    async def summarize(stream: AsyncIterable[Any]) -> None:
        async for event in stream.noack().events():  # type: ignore[attr-defined]
            lanes.submit(lane_of(event.value), partial(joining, event, handler.summarize))

    @app.agent(app.topic(kafka.retry_topic, schema=retries), name="retries")  # type: ignore[untyped-decorator]
    async def replace_fallbacks(stream: AsyncIterable[Any]) -> None:
        async for event in stream.noack().events():  # type: ignore[attr-defined]
            lanes.submit(retry_lane_of(event.value), partial(joining, event, handler.replace_fallback))

    @app.on_partitions_revoked.connect  # type: ignore[untyped-decorator]
    async def cancel(*_: Any, **__: Any) -> None:
        # the engine has waited as long as it may: the next owner handles the rest
        await lanes.cancel(lambda _: True)

    return lanes


def retries_schema(hold: Hold) -> AtLeastOnce:
    return AtLeastOnce(order=retry_lane_of, max_in_flight=RETRIES_IN_FLIGHT, hold=hold)


def place_in_kafka(record: KafkaRecord) -> str:
    """Name the record's place in Kafka: another record never has it."""
    return f"{record.topic}/{record.partition}/{record.offset}"


def lane_of(record: KafkaRecord) -> LaneKey:
    return record.topic, record.partition, record.key


def retry_lane_of(record: KafkaRecord) -> LaneKey:
    """Put all fallbacks of a partition into one lane: a change that waits for the archive passes them."""
    return record.topic, record.partition, record.key if waits_for_archive(record) else None


class Outputs:
    """Kafka topics that the summarizer writes. What is sent is committed together with the record's offset."""

    def __init__(self, app: App, kafka: Kafka, metrics: Metrics) -> None:
        self._metrics = metrics
        self._summaries = app.topic(kafka.summaries_topic, **RAW)
        self._deletions = app.topic(kafka.deletions_topic, **RAW)
        self._retries = app.topic(kafka.retry_topic, **RAW)
        self._dead_letters = app.topic(kafka.dead_letters(kafka.episodes_topic), **RAW)

    async def publish(self, summary: SummaryCreated | SummaryDeleted) -> None:
        if isinstance(summary, SummaryDeleted):
            headers = cloud_event(SUMMARY_DELETED, summary.event_id, CE_SOURCE, summary.deleted_at)
            headers += [owner_header(summary.tenant_id, None), *traceparent(get_current_span())]
            await self._deletions.send(key=summary.conversation_id.encode(), value=summary.to_json(), headers=headers)
            self._metrics.summaries_deleted.inc()
            return
        headers = cloud_event(SUMMARY_CREATED, summary.event_id, CE_SOURCE, summary.created_at)
        headers += [owner_header(summary.tenant_id, summary.user_id), *traceparent(get_current_span())]
        await self._summaries.send(key=summary.conversation_id.encode(), value=summary.to_json(), headers=headers)
        count_summary(self._metrics, summary)

    async def retry(self, record: KafkaRecord, attempt: Try, value: bytes | None) -> None:
        """Write the episode's own record to `episode.retry`, with this value."""
        original = [(name, text) for name, text in record.headers if not name.startswith(PREFIX)]
        await self._retries.send(key=record.key, value=value, headers=original + headers_of(attempt))

    async def send_to_dlq(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        await self._dead_letters.send(key=key, value=value, headers=headers)


def count_summary(metrics: Metrics, summary: SummaryCreated) -> None:
    reason = summary.quality.reason
    metrics.summaries.labels(summary.quality.source, bounded(reason) if reason else "").inc()


ArchivedTo = Callable[[int], Awaitable[int]]
"""Return the offset of a partition of `messages` below which the archiver has taken all; 0 if nobody knows."""


class ArchiverOffsets:
    """Offsets that the archiver has committed, read again once they are `KNOWN_SECONDS` old."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._offsets: CommittedOffsets = {}
        self._next = 0.0
        self._reading = asyncio.Lock()

    async def archived_to(self, partition: int) -> int:
        """Return the same as ArchivedTo."""
        async with self._reading:
            if (now := asyncio.get_running_loop().time()) >= self._next:
                self._next = now + KNOWN_SECONDS
                await self._read()
        found = self._offsets.get(TopicPartition(self._kafka.messages_topic, partition))
        return found.offset if found else 0

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(self._kafka.request_timeout_seconds), admin_client(self._kafka) as admin:
                self._offsets = await committed_offsets(admin, self._kafka.archiver_id)
        except (BrokerUnavailable, KafkaError, OSError, TimeoutError) as error:  # the change waits on
            log.warning("archiver_offsets_unknown", stage=RETRY_STAGE, error_type=type(error).__name__)


class RecordHandler:
    """Handles records of `episode.closed` and `episode.retry`. An error that it does not handle stops the worker."""

    def __init__(
        self,
        pipeline: Pipeline,
        amendments: Amendments,
        outputs: Outputs,
        attempts: Attempts,
        retry: Retry,
        archived_to: ArchivedTo,
        metrics: Metrics,
        tracer: Tracer,
        group: str,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`group`: the consumer group, for spans."""
        self._pipeline = pipeline
        self._amendments = amendments
        self._outputs = outputs
        self._attempts = attempts
        self._retry = retry
        self._archived_to = archived_to
        self._metrics = metrics
        self._tracer = tracer
        self._group = group
        self._clock_ms = clock_ms

    async def summarize(self, event: Any) -> None:
        """Acknowledge the record when its summary is stored and sent, and a retry of a fallback; or its dead letter."""
        await self._handle(event.value, self._summarize)
        event.ack()

    async def replace_fallback(self, event: Any) -> None:
        """Acknowledge the record when the LLM's summary is stored and sent, or the next retry, or none is left."""
        await self._handle(event.value, self._replace_fallback)
        event.ack()

    async def _summarize(self, record: KafkaRecord) -> None:
        event = decode_closed(record.key, record.value, record.headers)
        if isinstance(event, EpisodeAmended):
            await self._amend(record, event)
            return
        if isinstance(event, EpisodeRedo):
            await self._redo(record, event)
            return
        with bound_contextvars(episode_id=event.episode_id):
            summary = await self._pipeline.process(event)
        # after the announcement: a reader of the replacement has already read the summary that it supersedes
        if isinstance(summary, SummaryDeleted):
            return
        if summary.made_from == event.revision and is_replaceable(summary.quality):
            await self._schedule_episode(record, event, first_try(self._retry, self._now()))

    async def _amend(self, record: KafkaRecord, amended: EpisodeAmended, waited: int = 0) -> None:
        """Make the revisions of a change; a record that the archive has not caught up with is put aside.

        `waited`: how often it was. Raises: InvalidRecord for a message that is unknown to the archive even then, and
        for what the archiver has passed without archiving it.
        """
        # read before the archive is: what the archiver has passed by then is in it, or never will be
        archived_to = await self._archived_to(amended.partition) if waited else 0
        try:
            has_fallback = await self._amendments.apply(amended, waits=not waited)
        except NotArchived as error:
            if waited and not error.is_known:
                raise InvalidRecord("unknown_message", "there is no such message") from None
            if error.needs < archived_to:
                raise InvalidRecord(
                    "not_archived", "the archiver has rejected it, or a message of its episode"
                ) from None
            await self._put_aside(record, waited + 1, error)
        else:
            if has_fallback:
                await self._schedule(record, first_try(self._retry, self._now()))

    async def _redo(self, record: KafkaRecord, redo: EpisodeRedo) -> None:
        """Make the revision of a request, or leave the summary as it is: whoever asked asks again."""
        with bound_contextvars(episode_id=redo.episode_id):
            try:
                await self._amendments.redo(redo, place_in_kafka(record))
            except (NotRedone, ProviderError) as error:
                log.warning("redo_skipped", stage=STAGE, error_type=error.error_type, problem=str(error))

    async def _put_aside(self, record: KafkaRecord, number: int, error: NotArchived) -> None:
        log.warning("amendment_waits", stage=RETRY_STAGE, attempt=number, error_type=error.error_type)
        await self._schedule(record, put_aside(number, self._retry, self._now()))

    async def _replace_fallback(self, record: KafkaRecord) -> None:
        event, attempt = decode_closed(record.key, record.value, record.headers), try_from(record.headers)
        if isinstance(event, EpisodeRedo):
            raise InvalidRecord("unknown_type", "requests to redo summaries are taken on episode.closed only")
        fields = {"stage": RETRY_STAGE, "episode_id": event.episode_id, "attempt": attempt.number}
        if isinstance(event, EpisodeAmended) and attempt.waits:
            await self._amend(record, event, attempt.number)
            return
        try:
            with bound_contextvars(episode_id=event.episode_id):
                if isinstance(event, EpisodeAmended):
                    await self._amendments.replace_fallbacks(event, place_in_kafka(record))
                else:
                    await self._pipeline.replace_fallback(event)
        except ProviderError as error:
            following = next_try(attempt, error, self._retry, self._now())
            if isinstance(event, EpisodeAmended):
                await self._schedule(record, following)
            else:
                await self._schedule_episode(record, event, following)
            problem = {"error_type": error.error_type, "problem": str(error), "last": following is None}
            log.warning("fallback_kept", **fields, **problem)
        except NotArchived as error:
            await self._put_aside(record, attempt.number + 1, error)
        else:
            log.info("fallback_replaced", **fields)

    async def _schedule(self, record: KafkaRecord, attempt: Try | None) -> None:
        if attempt is not None:
            await self._outputs.retry(record, attempt, record.value)

    async def _schedule_episode(self, record: KafkaRecord, episode: EpisodeClosed, attempt: Try | None) -> None:
        """Try the episode again: a message that was deleted meanwhile is not written once more."""
        if attempt is None:
            return
        left = await self._pipeline.left_of(episode)
        if left is not None:
            await self._outputs.retry(record, attempt, record.value if left is episode else left.to_json())

    async def _handle(self, record: KafkaRecord, step: Callable[[KafkaRecord], Awaitable[None]]) -> None:
        """Run the step; a record that it rejects, or on which it keeps failing, goes to the dead-letter queue."""
        position = bound_contextvars(topic=record.topic, partition=record.partition, offset=record.offset)
        with position, self._span(record):
            where = f"{record.topic}-{record.partition}"
            error = await self._attempts.alone(record.key, where, lambda: self._take(record, step))
            if error is not None:
                await self._attempts.judged(where, error)
                await self._send_to_dlq(record, UNFORESEEN, place_of(error), self._attempts.most)

    async def _take(self, record: KafkaRecord, step: Callable[[KafkaRecord], Awaitable[None]]) -> None:
        try:
            await step(record)
        except InvalidRecord as error:
            await self._send_to_dlq(record, error.error_type, error.detail)
        except EpisodeConflict as error:
            await self._send_to_dlq(record, error.error_type, str(error))

    async def _send_to_dlq(self, record: KafkaRecord, error_type: str, problem: str, attempts: int = 1) -> None:
        log.warning("record_rejected", stage=STAGE, error_type=error_type, problem=problem)
        failure = {"stage": STAGE, "error_type": error_type, "message": problem}
        rejected = dead_letter(record, **failure, attempts=attempts, now_ms=self._clock_ms())
        await self._outputs.send_to_dlq(*rejected)
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
