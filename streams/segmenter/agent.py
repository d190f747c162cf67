"""The segmenter as a Faust agent, which processes batches exactly once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

import structlog
from aiokafka.partitioner import murmur2
from opentelemetry.trace import Tracer

from afterword.schemas.dead_letters import UNFORESEEN
from afterword.schemas.records import KafkaRecord
from afterword.streams.app import Worker, faust_app
from afterword.streams.errors import AfterwordError
from afterword.streams.kafka.clients import require_topics
from afterword.streams.segmenter.processor import STAGE, ByteBudget, Outcome, Segmenter
from afterword.streams.segmenter.state import CONVERSATIONS, MESSAGES, TABLES, deadline_of
from afterword.streams.settings import Settings
from afterword.streams.tasks import Turn
from afterword.streams.telemetry.metrics import Metrics
from afterword.streams.telemetry.tracing import links, process_span, trace_in
from afterword_text.tokens import message_tokens
from faust_eos.app import PARTITIONS, App
from faust_eos.batch import Batch, Batches, Tick, failing_batch
from faust_eos.options import wall_clock_ms
from faust_eos.transaction import Output

log = structlog.get_logger()

PIECE = ByteBudget(read=256 * 1024, write=1024 * 1024)
"""Maximum bytes of records, and of what is written for them, that are handled without a pause. Short messages cause
writes of three or four times their own size. With a lower limit for writes, a piece would have only a few messages of
each conversation, although it reads and writes the conversation's row once.
"""
POSITIVE = 0x7FFFFFFF


async def start(worker: Worker) -> dict[str, App]:
    """Make the segmenter's app. Raises: BrokerUnavailable, TopicMissing."""
    settings, kafka = worker.settings, worker.settings.kafka
    changelogs = [kafka.changelog(table) for table in TABLES]
    dead_letters = kafka.dead_letters(kafka.messages_topic)
    await require_topics(kafka, kafka.messages_topic, kafka.episodes_topic, dead_letters, *changelogs)
    worker.metrics.watch_pending(settings.episodes.idle_seconds, wall_clock_ms)
    app = faust_app(settings, kafka.group_of("segmenter"), worker.metrics.engine_of("segmenter"), role="segmenter")
    attach_segmenter(app, settings, worker.metrics, worker.tracer)
    return {PARTITIONS: app}


def attach_segmenter(app: App, settings: Settings, metrics: Metrics, tracer: Tracer) -> None:
    kafka = settings.kafka
    conversations = app.Table(CONVERSATIONS, deadline=deadline_of)
    messages = app.Table(MESSAGES)
    segmenter = Segmenter(
        limits=settings.episodes,
        episodes_topic=kafka.episodes_topic,
        dead_letters_topic=kafka.dead_letters(kafka.messages_topic),
        conversations=conversations.data,
        messages=messages.data,
        count_tokens=message_tokens,
        tracer=tracer,
        redaction=settings.redaction.of_records(),
    )
    handler = EventHandler(segmenter, metrics, app)
    schema = Batches(reject=handler.reject, stops=(AfterwordError,))

    @app.agent(app.topic(kafka.messages_topic, schema=schema), name="segmenter")  # type: ignore[untyped-decorator]
    async def segment(stream: AsyncIterable[Any]) -> None:
        async for work in stream:
            with failing_batch() as batch, handler.span_of(work):
                await handler.handle(work, batch)


class EventHandler:
    def __init__(self, segmenter: Segmenter, metrics: Metrics, app: App) -> None:
        self._segmenter = segmenter
        self._metrics = metrics
        self._app = app
        self._warned: set[int] = set()
        """Partitions whose producers were found to use another partitioner."""

    async def handle(self, work: Sequence[KafkaRecord] | Tick, batch: Batch) -> None:
        """Handle the records or deadlines that fit into one transaction, in pieces that let other tasks run."""
        number = len(work.due if isinstance(work, Tick) else work)
        now_ms, done, written = self._app.engine.clock(), 0, 0
        while done < number and written < batch.most_bytes:
            budget = PIECE._replace(write=min(PIECE.write, batch.most_bytes - written))
            if isinstance(work, Tick):
                due = Turn().of(key for _, key in islice(work.due, done, None))
                outcome = self._segmenter.tick(due, work.now_ms, work.topic, work.partition, budget)
            else:
                outcome = self._segmenter.process(Turn().of(islice(work, done, None)), now_ms, budget)
                self._warn_of_partitioner(outcome, work[0])
            for output in outcome.outgoing:  # Faust's topics would do the same more slowly
                batch.send(output)
            count(outcome, self._metrics)
            done, written = done + outcome.done, written + outcome.written
            await asyncio.sleep(0)
        batch.take_first(done)

    def span_of(self, work: Sequence[KafkaRecord] | Tick) -> AbstractContextManager[Any]:
        """Open a span around a batch of records that links to the spans of its messages."""
        if isinstance(work, Tick) or not self._segmenter.traced:
            return nullcontext()
        further = {"messaging.batch.message_count": len(work)}
        traces = links(trace_in(record.headers) for record in work)
        return process_span(self._segmenter.tracer, work[0], self._app.conf.id, further, links=traces)

    def reject(self, record: Any, error: Exception) -> Output:
        count(Outcome(dead_letters=Counter({UNFORESEEN: 1})), self._metrics)
        return self._segmenter.dead_letters.of_failure(record, error, self._app.engine)

    def _warn_of_partitioner(self, outcome: Outcome, record: KafkaRecord) -> None:
        """Warn, once per partition, that a conversation began outside its standard partition."""
        topic, partition = record.topic, record.partition
        partitions = self._app.consumer.topic_partitions(topic)
        if not partitions or partition in self._warned:  # 0 if the number is not known yet
            return
        standard = (standard_partition(key, partitions) for key in outcome.new_conversation_keys)
        elsewhere = next((candidate for candidate in standard if candidate != partition), None)
        if elsewhere is not None:
            self._warned.add(partition)
            where = {"topic": topic, "partition": partition, "standard_partition": elsewhere}
            log.warning("conversation_in_another_partition", stage=STAGE, error_type="other_partitioner", **where)


def count(outcome: Outcome, metrics: Metrics) -> None:
    """Add an outcome to the metrics, once per batch rather than once per message."""
    metrics.messages.labels("taken").inc(outcome.messages)
    metrics.messages.labels("duplicate").inc(outcome.duplicates)
    metrics.messages.labels("changed_repeat").inc(outcome.changed_repeats)
    metrics.messages.labels("skipped").inc(outcome.skipped)
    metrics.messages.labels("amendment").inc(outcome.amendments)
    metrics.messages.labels("dead_letter").inc(outcome.dead_letters.total())
    for error_type, number in outcome.dead_letters.items():
        metrics.dead_letters.labels(STAGE, error_type).inc(number)
    for reason, number in outcome.episodes.items():
        metrics.episodes_closed.labels(reason).inc(number)


def standard_partition(key: bytes, partitions: int) -> int:
    """Return the partition that Java's client, aiokafka and others choose for the key."""
    return int(murmur2(key) & POSITIVE) % partitions
