"""The summarizer's Faust agent: at least once, many conversations concurrently, each of them in order.

`start` is the composition root: the only place that knows all of its classes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentelemetry.trace import Tracer, get_current_span
from structlog.contextvars import bound_contextvars

from afterword.schemas import (
    ConversationUpdated,
    EpisodeRedo,
    InvalidRecord,
    SummaryCreated,
    decode_closed,
)
from afterword.schemas.base import event_id, scope_id
from afterword.schemas.dead_letters import UNFORESEEN
from afterword.schemas.episodes import EPISODE_REDO
from afterword.schemas.records import DELETION, Headers, KafkaRecord, cloud_event, owner_header
from afterword.schemas.summaries import ANNOUNCED
from afterword.streams.app import Worker, attach_agents, faust_app, send
from afterword.streams.dead_letters import DeadLetters
from afterword.streams.errors import AfterwordError
from afterword.streams.kafka.clients import IdempotentProducer, require_topics, running_producer
from afterword.streams.settings import Kafka, Settings
from afterword.streams.steps import StepRunner
from afterword.streams.stores.bookkeeping import Budgets, Records
from afterword.streams.stores.episodes import Cause
from afterword.streams.summarizer.embedders import LocalEmbedder, make_embedder
from afterword.streams.summarizer.reconciler import STAGE, Event, Reconciler
from afterword.streams.summarizer.summarizer import Summarizer, make_summarizer
from afterword.streams.summarizer.summary import SummaryRules
from afterword.streams.summarizer.timers import CE_SOURCE, FallbackTimer, RetentionSweep, retry_refused
from afterword.streams.telemetry.metrics import Metrics
from afterword.streams.telemetry.tracing import context_of, mark_failed, process_span, trace_in, traceparent
from faust_eos.app import PARTITIONS, App, crash_with
from faust_eos.at_least_once import AtLeastOnce
from faust_eos.errors import place_of
from faust_eos.failures import Attempts
from faust_eos.options import wall_clock_ms
from faust_eos.transaction import Output

MakeSummarizer = Callable[[Settings, Budgets, Metrics, Tracer, Records], Summarizer]
MOST_ASKED = 2
"""Maximum number of summaries for which one record asks an LLM: a message may be in one episode and the next."""


def summary_rules(settings: Settings) -> SummaryRules:
    return SummaryRules(
        rolling_max_tokens=settings.rolling.max_tokens,
        max_summary_length=settings.summarizer.max_summary_length or settings.episodes.preset.max_summary_length,
        zone=settings.summarizer.zone,
    )


def summarizer_app(settings: Settings, metrics: Metrics) -> App:
    """Make the Faust app, without agents. Its watchdog allows for all LLM calls that one record may need."""
    limit = MOST_ASKED * settings.llm.summary_seconds
    group = settings.kafka.group_of("summarizer")
    return faust_app(settings, group, metrics.engine_of("summarizer"), role="summarizer", handling_seconds=limit)


async def start(worker: Worker, make: MakeSummarizer = make_summarizer) -> dict[str, App]:
    """Make the summarizer's app, its stores and its timers. Raises: AfterwordError, KafkaError."""
    settings, metrics, tracer, closing = worker.settings, worker.metrics, worker.tracer, worker.closing
    kafka = settings.kafka
    dead_letters_topic = kafka.dead_letters(kafka.episodes_topic)
    await require_topics(
        kafka,
        kafka.episodes_topic,
        kafka.summaries_topic,
        kafka.deletions_topic,
        kafka.conversations_topic,
        *kafka.current_topics,
        dead_letters_topic,
    )
    stores = worker.stores
    if embedder := make_embedder(settings.embedder, settings.redaction):
        closing.push_async_callback(embedder.close)
    summaries = make(settings, stores.budgets, metrics, tracer, stores.records)
    closing.push_async_callback(summaries.close)
    app = summarizer_app(settings, metrics)
    steps = StepRunner(worker.readiness, metrics, tracer)
    outputs = Outputs(kafka, metrics)
    reconciler = Reconciler(
        episodes=stores.episodes,
        messages=stores.messages,
        index=stores.index,
        summarizer=summaries,
        embedder=embedder,
        publish=outputs.publish,
        keep=outputs.keep,
        steps=steps,
        rules=summary_rules(settings),
        retry=settings.retry,
        retention=settings.retention,
    )
    dead_letters = DeadLetters(STAGE, dead_letters_topic, metrics=metrics)
    attempts = Attempts(app.breaker, app.engine.agent_retries, stops=(AfterwordError,))
    handler = RecordHandler(reconciler, dead_letters, attempts, tracer, kafka.group_of("summarizer"))
    episodes = kafka.episodes_topic, AtLeastOnce(order=lane_of, reject=handler.dead_letter)
    prepared = asyncio.Event()

    async def handle(event: Any) -> None:
        await prepared.wait()
        await handler.handle(event)

    lanes = attach_agents(app, STAGE, {"summarizer": episodes}, handle)
    metrics.in_flight.set_function(lambda: lanes.in_flight)
    if isinstance(embedder, LocalEmbedder):
        embedder.at_a_time = lambda: lanes.in_flight
    closing.push_async_callback(lanes.cancel)
    producer: IdempotentProducer | None = None

    async def send_redo(redo: EpisodeRedo) -> None:
        nonlocal producer
        if producer is None:  # most summarizers never have a summary to replace, nor anything that expires
            producer = await closing.enter_async_context(running_producer(kafka))
        ce_id = f"{event_id(redo.episode_id, redo.revision)}:redo:{redo.attempt}"
        key, headers = redo.conversation_id.encode(), cloud_event(EPISODE_REDO, ce_id, CE_SOURCE, redo.requested_at)
        await producer.send_and_wait(kafka.episodes_topic, redo.to_json(), key=key, headers=headers)

    sweep = RetentionSweep(settings.retention, episodes=stores.episodes, messages=stores.messages, send=send_redo)
    timer = FallbackTimer(stores.episodes, summaries, send_redo, settings.retry)

    async def work_beside() -> None:
        await steps.retry_until_success("indexes", stores.prepare_database)
        await steps.retry_until_success("indexes", stores.index.prepare)
        prepared.set()
        refused = steps.retry_until_success("refused", lambda: retry_refused(stores.episodes, stores.records, settings))
        await asyncio.gather(sweep.run(), timer.run(), refused)

    working = asyncio.create_task(work_beside())
    closing.callback(working.cancel)
    closing.callback(asyncio.create_task(crash_with(app, [working])).cancel)
    return {PARTITIONS: app}


def lane_of(record: KafkaRecord) -> tuple[str, int, bytes | None]:
    return record.topic, record.partition, record.key


@dataclass(frozen=True)
class Outputs:
    """The summarizer's output to Kafka. The records are committed together with the source's offset."""

    kafka: Kafka
    metrics: Metrics

    async def publish(self, event: Event) -> None:
        if isinstance(event, SummaryCreated):
            self.metrics.summaries.labels(event.quality.source, event.quality.reason or "").inc()
        topic = f"{self.kafka.prefix}{ANNOUNCED[type(event)][0]}"
        send(Output(topic, event.conversation_id.encode(), event.to_json(), headers=headers_of(event)))

    async def keep(self, event: Event) -> None:
        """Write an event to its compacted topic, or a tombstone if nothing is left of its subject."""
        send(current_output(self.kafka, event))


def headers_of(event: Event) -> Headers:
    (ce_type, time), user_id = ANNOUNCED[type(event)], event.user_id if isinstance(event, SummaryCreated) else None
    headers = cloud_event(ce_type, event.event_id, CE_SOURCE, getattr(event, time))
    return [*headers, owner_header(event.tenant_id, user_id), *traceparent(get_current_span())]


def current_output(kafka: Kafka, event: Event) -> Output:
    """Return an event's record on its compacted topic, in the partition of its conversation."""
    topic, key, value, headers = kafka.current_episodes_topic, "", None, headers_of(event)
    if isinstance(event, ConversationUpdated):
        topic, key = kafka.current_conversations_topic, scope_id(event.conversation_id, event.agent_id)
        value = event.to_json() if event.episode_count else None
    elif isinstance(event, SummaryCreated):
        key, value = event.episode_id, event.to_json()
    else:
        key = event.episode_id
        headers.append((DELETION, event.to_json()))
    return Output(topic, key.encode(), value, headers=headers, partition_key=event.conversation_id.encode())


@dataclass(frozen=True)
class RecordHandler:
    """Handles records of `episode.closed`. An error that it does not handle stops the worker."""

    reconciler: Reconciler
    dead_letters: DeadLetters
    attempts: Attempts
    tracer: Tracer
    group: str
    """The consumer group, for spans."""
    clock_ms: Callable[[], int] = wall_clock_ms
    send: Callable[[Output], None] = send
    """Sends with the offset of the record in hand."""

    async def handle(self, event: Any) -> None:
        """Acknowledge the record once everything that it changes is stored and sent, or its dead letter is sent.

        A record that is rejected, or fails again and again, goes to the dead-letter queue.
        """
        record: KafkaRecord = event.value
        position = bound_contextvars(topic=record.topic, partition=record.partition, offset=record.offset)
        further = {"messaging.kafka.offset": record.offset}
        trace = context_of(trace_in(record.headers))  # the span continues the record's trace
        with position, process_span(self.tracer, record, self.group, further, context=trace):
            where = f"{record.topic}-{record.partition}"
            error = await self.attempts.alone(record.key, where, lambda: self._take(record))
            if error is not None:
                self._reject(record, UNFORESEEN, place_of(error), self.attempts.most)
        event.ack()

    def dead_letter(self, record: KafkaRecord, error: Exception) -> Output:
        """Make the dead letter of a record that leads to what Kafka refuses."""
        return self.dead_letters.of(record, UNFORESEEN, place_of(error), self.clock_ms())

    async def _take(self, record: KafkaRecord) -> None:
        try:
            event = decode_closed(record.key, record.value, record.headers)
            cause = Cause(record.topic, record.partition, record.offset)
            with bound_contextvars(episode_id=event.episode_id):
                await self.reconciler.handle(event, cause)
        except InvalidRecord as error:
            self._reject(record, error.error_type, error.detail)

    def _reject(self, record: KafkaRecord, error_type: str, problem: str, attempts: int = 1) -> None:
        self.send(self.dead_letters.of(record, error_type, problem, self.clock_ms(), attempts))
        mark_failed(get_current_span(), error_type)
