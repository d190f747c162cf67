"""The archiver: `messages` → MongoDB, in bulk, every message as it was produced, or as it was changed last.

Invalid records are only counted here. The segmenter reads the same topic and sends each of them to `messages.dlq`, in
the transaction that commits its offset; a second dead letter from here would be a duplicate. Only a record on which the
archiver itself keeps failing is a dead letter of its own, with the stage `archive`.
"""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import stamina
import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from opentelemetry.trace import SpanKind, Tracer

from afterword.consumers.growth import GrowthGuard
from afterword.schemas import ConversationFlush, InvalidRecord, MessageCreated, decode_input
from afterword.schemas.dead_letters import ARCHIVE, UNFORESEEN, DeadLetterRecord, dead_letter
from afterword.streams.errors import AfterwordError, BrokerUnavailable, StoreUnavailable
from afterword.streams.kafka import client_options, running_consumer, running_producer
from afterword.streams.runtime import Breaker, EngineMetrics
from afterword.streams.runtime.attempts import Attempts
from afterword.streams.runtime.errors import FATAL, REFUSED_SECONDS, TRANSIENT, Refusals, place_of
from afterword.streams.runtime.health import HealthServer, Readiness
from afterword.streams.runtime.lag import Lags, Standing, Work, regularly
from afterword.streams.runtime.options import Clients, wall_clock_ms
from afterword.streams.runtime.positions import readable
from afterword.streams.runtime.session import size_of
from afterword.streams.runtime.worker import PARTITIONS, StopTimer
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.messages import ArchiveChange, ArchivedMessage, MessageWriter
from afterword.streams.stores.opening import Stores, open_stores
from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.tracing import links, open_span, step, trace_in
from afterword.streams.telemetry.worker import worker_telemetry

if TYPE_CHECKING:  # its libraries take 100 ms to import, and most workers redact nothing
    from afterword.streams.redaction.records import RecordRedaction

log = structlog.get_logger(__name__)

STAGE = ARCHIVE
"""The only step."""
QUEUE = "dead_letter"
CONDITIONS = (PARTITIONS, STAGE)
MAX_BATCH = 2000
"""Records of one write."""
POLL_MILLISECONDS = 500
"""Longest wait for records, and so for a stop to be noticed."""
FIRST_RETRY_SECONDS = 0.2
LAST_RETRY_SECONDS = 10.0
NEVER_MILLISECONDS = 2**31 - 1
"""24 days: the longest interval that Kafka's own clients accept."""

MAX_WRITE_BYTES = 512 * 1024
"""Bytes of records that are decoded and written without a pause: 0.15 s when tokens are slow to count."""

ARCHIVED, AMENDED, INVALID, OTHER, FAILED = OUTCOMES = ("archived", "amended", "invalid", "other", "failed")
"""Outcomes of a record; `amended` are edits and deletions, `other` are flushes."""

Entry = ArchivedMessage | ArchiveChange

SendDeadLetters = Callable[[Sequence[DeadLetterRecord]], Awaitable[None]]
"""Writes dead letters; returns when they are acknowledged."""


async def run_archiver(settings: Settings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM or SIGINT, or until `stop` is set; then finish the write in flight.

    Raises: BrokerUnavailable, TopicMissing, SourceReplaced, SourceGrown, OSError (health port).
    """
    stop = stop or stop_signal(settings)
    readiness, kafka = Readiness(*CONDITIONS), settings.kafka
    async with worker_telemetry("archiver", settings, readiness) as telemetry:
        metrics, tracer = telemetry.metrics, telemetry.tracer
        guard = GrowthGuard(Clients(client_options(kafka)), kafka.archiver_id, kafka.messages_topic)
        listener = RebalanceTimer(metrics.engine)
        async with (
            HealthServer(readiness, settings.health.host, settings.health.port, telemetry.views),
            connected_archive(settings, readiness) as archive,
            running_consumer(kafka, kafka.messages_topic, listener=listener, **group_options(kafka)) as consumer,
        ):
            attempts = Attempts(Breaker(), settings.engine.agent_retries, stops=(AfterwordError,))
            queue = partial(send_dead_letters, kafka, readiness)
            archiver = Archiver(
                consumer,
                archive,
                readiness,
                metrics,
                tracer,
                kafka,
                attempts,
                queue,
                settings.redaction.of_records(),
                guard=guard,
            )
            reporting = asyncio.create_task(report_lag(consumer, archiver, metrics.engine))
            try:
                await until_stopped(archiver, stop, settings.drain_seconds)
            finally:
                reporting.cancel()
            log.info("archiver_stopped", **archiver.counts)


class Archiver:
    """Archives the consumer's records until it is stopped, and commits after each write.

    A batch is archived before its offsets are committed, so a crash may repeat a write; the archive keeps what it had
    first. While the archive is unavailable the batch is retried.
    """

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        archive: MessageWriter,
        readiness: Readiness,
        metrics: Metrics,
        tracer: Tracer,
        kafka: Kafka,
        attempts: Attempts,
        reject: SendDeadLetters,
        redaction: "RecordRedaction | None" = None,
        *,
        guard: GrowthGuard | None = None,
    ) -> None:
        """`redaction`: takes personal data and secrets out of what is archived, and out of dead letters.

        `guard`: stops it when the source gets more partitions.
        """
        self.counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        """Records since the start, by outcome."""
        self._work: dict[TopicPartition, Work] = {}
        self._consumer = consumer
        self._archive = archive
        self._readiness = readiness
        self._metrics = metrics
        self._totals = {outcome: metrics.archived.labels(outcome) for outcome in OUTCOMES}
        self._tracer = tracer
        self._attempts = attempts
        self._reject = reject
        self._redaction = redaction
        self._guard = guard
        self._span_name = f"process {kafka.messages_topic}"
        self._span_attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": kafka.messages_topic,
            "messaging.consumer.group.name": kafka.archiver_id,
        }

    async def run(self, stop: asyncio.Event) -> None:
        """Archive batches until `stop` is set; when cancelled, leave the batch in flight uncommitted."""
        while not stop.is_set():
            batch = await self._fetched()
            await self._check_growth()
            self._note_assignment()
            if batch:
                await self.handle(batch)

    async def _fetched(self) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return the next records; nothing if a partition has no position, or one that is out of range."""
        try:
            return await self._consumer.getmany(timeout_ms=POLL_MILLISECONDS, max_records=MAX_BATCH)  # type: ignore[no-any-return]  # aiokafka is not typed
        except NoOffsetForPartitionError as error:
            positions = {error.args[0]: -1}
        except OffsetOutOfRangeError as error:
            positions = error.args[0]
        await self._check_growth()  # nothing is committed of a new partition either
        for source, position in positions.items():
            await self._reposition(source, position)
        return {}

    async def _check_growth(self) -> None:
        if self._guard:
            await self._guard.check(self._consumer)

    async def _reposition(self, source: TopicPartition, position: int) -> None:
        """Go on with the first record that is there, and count what expired unread. −1: the group has no position.

        Raises: SourceReplaced.
        """
        try:
            start = await readable(self._consumer, source, position, self._metrics.engine)
            self._consumer.seek(source, start)
            await self._commit({source: start})
        except FATAL:
            raise
        except TRANSIENT as error:  # no broker, or a rebalance: the next fetch raises again
            name = type(error).__name__
            log.warning(
                "reposition_failed", stage=STAGE, error_type=name, topic=source.topic, partition=source.partition
            )

    def work(self, source: TopicPartition) -> Work:
        """Report the progress of a partition."""
        return self._work.get(source, Work())

    async def handle(self, batch: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
        """Archive a batch and commit its offsets, in a span that links the spans of its messages."""
        records = [record for found in batch.values() for record in found]
        self._work |= {source: in_hand(found) for source, found in batch.items()}
        attributes = self._span_attributes | {"messaging.batch.message_count": len(records)}
        traces = links(trace_in(record.headers) for record in records)
        with open_span(self._tracer, self._span_name, SpanKind.CONSUMER, attributes, links=traces):
            await self._archived(records)
            await self._commit({source: found[-1].offset + 1 for source, found in batch.items()})
        self._work |= {source: done(found) for source, found in batch.items()}

    async def _archived(self, records: list[ConsumerRecord]) -> None:
        """Write the records in parts of bounded size, and the dead letters of those that cannot be written."""
        rejected: list[DeadLetterRecord] = []
        for part in parts(records, MAX_WRITE_BYTES):
            rejected += await self._isolated(part)
            await asyncio.sleep(0)
        if rejected:
            await self._reject(rejected)
            self._count(FAILED, len(rejected))

    async def _isolated(self, records: list[ConsumerRecord]) -> list[DeadLetterRecord]:
        """Write the records; those that fail alone are returned as dead letters. Raises: EverythingFails."""
        if len(records) == 1:
            return await self._alone(records[0])
        error = await self._attempts.once(lambda: self._write(self._entries(records)))
        if error is None:
            return []
        half = len(records) // 2
        return [*await self._isolated(records[:half]), *await self._isolated(records[half:])]

    async def _alone(self, record: ConsumerRecord) -> list[DeadLetterRecord]:
        where = f"{record.topic}-{record.partition}"
        error = await self._attempts.alone(record.key, where, lambda: self._write(self._entries([record])))
        if error is None:
            return []
        self._attempts.check(where, error)
        problem, tries = place_of(error), self._attempts.most
        position = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        log.error("record_rejected", stage=STAGE, error_type=UNFORESEEN, problem=problem, **position)
        self._metrics.count_dead_letters(STAGE, UNFORESEEN)
        failure = {"stage": STAGE, "error_type": UNFORESEEN, "message": problem}
        rejected = dead_letter(record, **failure, attempts=tries, now_ms=wall_clock_ms())
        return [self._redaction.dead_letter(*rejected) if self._redaction else rejected]

    async def _write(self, entries: list[Entry]) -> None:
        if not entries:
            return
        with step(self._metrics, self._tracer, STAGE) as span:
            span.set_attribute("afterword.message_count", len(entries))
            await until_available(lambda: write(self._archive, entries), self._readiness)
        messages = sum(isinstance(entry, ArchivedMessage) for entry in entries)
        self._count(ARCHIVED, messages)
        if len(entries) > messages:
            self._count(AMENDED, len(entries) - messages)

    def _entries(self, records: Iterable[ConsumerRecord]) -> list[Entry]:
        found = (self._entry(record) for record in records)
        return [entry for entry in found if entry is not None]

    def _entry(self, record: ConsumerRecord) -> Entry | None:
        try:
            event = decode_input(record.key, record.value, record.headers, record.timestamp)
        except InvalidRecord as error:
            self._count(INVALID)
            where = {"partition": record.partition, "offset": record.offset}
            log.debug("record_not_archived", stage=STAGE, error_type=error.error_type, **where)
            return None
        if self._redaction:
            event = self._redaction.event(event)
        if isinstance(event, ConversationFlush):
            self._count(OTHER)
            return None
        if isinstance(event, MessageCreated):
            return ArchivedMessage(event, record.partition, record.offset)
        return ArchiveChange(event, record.partition, record.offset)

    def _count(self, outcome: str, number: int = 1) -> None:
        self.counts[outcome] += number
        self._totals[outcome].inc(number)

    async def _commit(self, offsets: dict[TopicPartition, int]) -> None:
        try:
            await self._consumer.commit(self._guard.commits(offsets) if self._guard else offsets)
        except (CommitFailedError, IllegalStateError):
            # a rebalance came first: the new owner writes the same messages again, without effect
            log.info("commit_overtaken", stage=STAGE)

    def _note_assignment(self) -> None:
        assigned = self._consumer.assignment()
        self._work = {source: work for source, work in self._work.items() if source in assigned}
        if assigned:
            self._readiness.ready(PARTITIONS)
        else:
            self._readiness.not_ready(PARTITIONS, "none_assigned")


async def write(archive: MessageWriter, entries: Sequence[Entry]) -> None:
    """Write in the order of the log: messages that no change lies between together. May be repeated.

    Raises: StoreUnavailable.
    """
    messages: list[ArchivedMessage] = []
    for entry in entries:
        if isinstance(entry, ArchivedMessage):
            messages.append(entry)
            continue
        if messages:
            await archive.put_many(messages)
        await archive.change(entry)
        messages = []
    if messages:
        await archive.put_many(messages)


def in_hand(records: list[ConsumerRecord]) -> Work:
    return Work(records[0].offset, records[0].timestamp)


def done(records: list[ConsumerRecord]) -> Work:
    return Work(records[-1].offset + 1, done_ms=records[-1].timestamp)


async def until_available(call: Callable[[], Awaitable[None]], readiness: Readiness) -> None:
    """Retry a call of the archive until it answers, and be not ready meanwhile."""

    def is_retried(error: Exception) -> bool:
        if not isinstance(error, StoreUnavailable):
            return False
        readiness.not_ready(STAGE, error.error_type)
        return True

    await until_done(call, is_retried)
    readiness.ready(STAGE)


async def send_dead_letters(
    kafka: Kafka, readiness: Readiness, letters: Sequence[DeadLetterRecord], refused_seconds: float = REFUSED_SECONDS
) -> None:
    """Write to `messages.dlq`, with a producer for this once; retried, and not ready meanwhile, until it succeeds.

    Raises: one of FATAL, when Kafka answered nothing else for `refused_seconds`.
    """
    refusals = Refusals(refused_seconds)

    def is_retried(error: Exception) -> bool:
        if not isinstance(error, BrokerUnavailable | KafkaError) or refusals.are_final(error, time.monotonic()):
            return False
        readiness.not_ready(QUEUE, error.error_type if isinstance(error, AfterwordError) else type(error).__name__)
        return True

    async def send() -> None:
        async with running_producer(kafka) as producer:
            for key, value, headers in letters:
                topic = kafka.dead_letters(kafka.messages_topic)
                await producer.send_and_wait(topic, value or b"", key=key, headers=headers)

    await until_done(send, is_retried)
    readiness.ready(QUEUE)


async def until_done(call: Callable[[], Awaitable[None]], is_retried: Callable[[Exception], bool]) -> None:
    """Retry the call without end, with growing waits. Raises: an error that is not retried."""
    with structlog.contextvars.bound_contextvars(stage=STAGE):
        async for attempt in stamina.retry_context(
            on=is_retried,
            attempts=None,
            timeout=None,
            wait_initial=FIRST_RETRY_SECONDS,
            wait_max=LAST_RETRY_SECONDS,
            wait_jitter=0.0,
        ):
            with attempt:
                await call()


def parts(records: Iterable[ConsumerRecord], most_bytes: int) -> Iterator[list[ConsumerRecord]]:
    """Cut the records into lists of at most `most_bytes`, or of a single record."""
    part: list[ConsumerRecord] = []
    total = 0
    for record in records:
        size = size_of(record)
        if part and total + size > most_bytes:
            yield part
            part, total = [], 0
        part.append(record)
        total += size
    if part:
        yield part


@asynccontextmanager
async def connected_archive(settings: Settings, readiness: Readiness) -> AsyncIterator[MessageWriter]:
    """Open the archive, available or not: until there is something to write, readiness follows a ping."""
    async with open_stores(settings) as stores:
        contact = asyncio.create_task(until_available(stores.ping_database, readiness))
        try:
            yield PreparedArchive(stores)
        finally:
            contact.cancel()


class PreparedArchive:
    """A MessageWriter that prepares the database with the first write, so that both are retried until it answers."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._prepared = False

    async def put_many(self, messages: Sequence[ArchivedMessage]) -> None:
        await self._prepare()
        await self._stores.messages.put_many(messages)

    async def change(self, change: ArchiveChange) -> None:
        await self._prepare()
        await self._stores.messages.change(change)

    async def _prepare(self) -> None:
        if not self._prepared:
            await self._stores.prepare_database()
            self._prepared = True


def group_options(kafka: Kafka) -> dict[str, object]:
    """Consumer options for the archiver's group."""
    return {
        "group_id": kafka.archiver_id,
        "group_instance_id": kafka.group_instance_id,
        "auto_offset_reset": "none",  # never a silent jump: see Archiver._reposition
        "session_timeout_ms": int(kafka.session_timeout_seconds * 1000),
        "heartbeat_interval_ms": int(kafka.session_timeout_seconds * 1000 / 3),
        "rebalance_timeout_ms": int(kafka.rebalance_timeout_seconds * 1000),
        # it does not poll while it waits for MongoDB, and no other member could do better with its partitions
        "max_poll_interval_ms": NEVER_MILLISECONDS,
    }


class RebalanceTimer(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is not typed
    """Measures each rebalance, as the engine does for the other roles; the first assignment counts from the start."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._began = time.monotonic()

    def on_partitions_revoked(self, _revoked: Iterable[TopicPartition]) -> None:
        self._began = time.monotonic()

    def on_partitions_assigned(self, _assigned: Iterable[TopicPartition]) -> None:
        self._metrics.rebalanced(time.monotonic() - self._began)


async def report_lag(consumer: AIOKafkaConsumer, archiver: Archiver, metrics: EngineMetrics) -> None:
    """Update the lag of the assigned partitions at regular intervals, until cancelled."""
    async for found in regularly(Lags(consumer, archiver.work, wall_clock_ms)):
        metrics.show([Standing(source.topic, source.partition, True, *lag) for source, lag in found.items()])


def stop_signal(settings: Settings) -> asyncio.Event:
    """Make an event that SIGTERM and SIGINT set. From then on the process has the time of a stop for all that is left:
    a broker that does not answer would keep it for longer.
    """
    stop, timer = asyncio.Event(), StopTimer(settings.kafka.archiver_id, settings.drain_seconds)

    def asked_to_stop() -> None:
        stop.set()
        timer.begin(code=0)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked_to_stop)
    return stop


async def until_stopped(archiver: Archiver, stop: asyncio.Event, drain_seconds: float) -> None:
    """Run until `stop` is set; then give the write in flight `drain_seconds`, and leave it uncommitted after that."""
    running = asyncio.create_task(archiver.run(stop))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    with suppress(TimeoutError):
        await asyncio.wait_for(running, drain_seconds)
        return
    log.warning("drain_timed_out", stage=STAGE, error_type="drain_timed_out", drain_seconds=drain_seconds)
