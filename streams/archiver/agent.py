"""The archiver writes every message of `messages` to the archive in bulk, and applies edits, deletions and assignments.

It only counts invalid records. The segmenter reads the same topic and sends each of them to `messages.dlq`, in the
transaction that commits its offset; a dead letter from here would be a duplicate. The archiver writes dead letters only
for records that it fails on itself, with the stage `archive`.
"""

import asyncio
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from opentelemetry.trace import Tracer, get_current_span

from afterword.schemas import (
    ConversationAssigned,
    ConversationDeleted,
    ConversationFlush,
    InvalidRecord,
    MessageCreated,
    decode_input,
)
from afterword.schemas.dead_letters import ARCHIVE
from afterword.schemas.records import EventOwner, KafkaRecord, owner_in
from afterword.streams.app import Worker, faust_app
from afterword.streams.dead_letters import DeadLetters
from afterword.streams.errors import AfterwordError
from afterword.streams.kafka.clients import require_topics
from afterword.streams.settings import Settings
from afterword.streams.steps import StepRunner
from afterword.streams.stores.messages import ArchiveChange, ArchivedMessage, MessageArchive, Whose
from afterword.streams.telemetry.metrics import Metrics
from afterword.streams.telemetry.tracing import links, process_span, trace_in
from afterword_text.tokens import packed
from faust_eos.app import PARTITIONS, App
from faust_eos.batch import Batches, failing_batch
from faust_eos.transaction import Output, size_of

if TYPE_CHECKING:  # its libraries take 100 ms to import, and most workers do not redact
    from afterword.streams.redactor import RecordRedaction

log = structlog.get_logger(__name__)

STAGE = ARCHIVE
"""The archiver's only stage."""
MOST_SECONDS = 10.0
"""After this time the finished part of a batch is committed, so that slow servers do not look like a stalled worker."""
MAX_WRITE_BYTES = 512 * 1024
"""Upper limit for what is decoded and written without a pause; it takes up to 0.15 s when counting tokens is slow."""
MAX_WRITE_RECORDS = 100
"""Upper limit for one write: a smaller record counts as this share of MAX_WRITE_BYTES."""

ARCHIVED, AMENDED, INVALID, OTHER, FAILED = ("archived", "amended", "invalid", "other", "failed")
"""Outcomes of a record. `amended` counts edits, deletions and assignments, `other` flushes."""

Entry = ArchivedMessage | ArchiveChange
Claimed = tuple[Entry, EventOwner | None]
"""An entry, and the owner that its record's producer claims for it."""


async def start(worker: Worker) -> dict[str, App]:
    """Make the archiver's app. Raises: BrokerUnavailable, TopicMissing."""
    settings, kafka = worker.settings, worker.settings.kafka
    await require_topics(kafka, kafka.messages_topic, kafka.dead_letters(kafka.messages_topic))
    stores, metrics, tracer = worker.stores, worker.metrics, worker.tracer
    steps = StepRunner(worker.readiness, metrics, tracer)
    app = archiver_app(settings, stores.messages, stores.prepare_database, steps, metrics, tracer)
    return {PARTITIONS: app}


def archiver_app(
    settings: Settings,
    archive: MessageArchive,
    prepare: Callable[[], Awaitable[None]],
    steps: StepRunner,
    metrics: Metrics,
    tracer: Tracer,
) -> App:
    """Build the app with its one agent, which prepares the archive before its first records.

    Offsets and dead letters are committed exactly once; there are no tables.
    """
    kafka = settings.kafka
    app = faust_app(settings, kafka.group_of("archiver"), metrics.engine_of("archiver"), role="archiver")
    redaction = settings.redaction.of_records()
    repeats_edit = settings.episodes.on_changed_repeat == "edit"
    archiver = Archiver(archive, steps, metrics, tracer, redaction, repeats_edit)
    dead_letters = DeadLetters(STAGE, kafka.dead_letters(kafka.messages_topic), redaction, metrics)

    def reject(record: Any, error: Exception) -> Output:
        archiver.count(FAILED)
        return dead_letters.of_failure(record, error, app.engine)

    @app.agent(  # type: ignore[untyped-decorator]
        app.topic(kafka.messages_topic, schema=Batches(reject=reject, stops=(AfterwordError,))), name="archiver"
    )
    async def archive_messages(stream: AsyncIterable[Any]) -> None:
        await steps.retry_until_success("indexes", prepare)
        async for records in stream:
            with failing_batch() as batch:
                batch.take_first(await archiver.handle(records, kafka.group_of("archiver")))

    return app


@dataclass(eq=False)
class Archiver:
    """Writes batches of records to the archive, and retries a batch while the archive is unavailable.

    A batch is archived before its offset is committed, so a crash may repeat a write. The archive then keeps the
    version it already has.
    """

    archive: MessageArchive
    steps: StepRunner
    metrics: Metrics
    tracer: Tracer
    redaction: "RecordRedaction | None" = None
    """Removes personal data and secrets from archived messages."""
    repeats_edit: bool = True
    """Whether a message with a known id and another text edits the earlier one."""
    clock: Callable[[], float] = time.monotonic

    async def handle(self, records: Sequence[KafkaRecord], group: str) -> int:
        """Write records of one partition in small parts for up to MOST_SECONDS. Returns how many are done.

        The work is traced in a span that links to the messages' spans. `group` is the consumer group recorded in that
        span.
        """
        done, until = 0, self.clock() + MOST_SECONDS
        further = {"messaging.batch.message_count": len(records)}
        traces = links(trace_in(record.headers) for record in records)
        with process_span(self.tracer, records[0], group, further, links=traces):
            sizes = [max(size_of(record), MAX_WRITE_BYTES // MAX_WRITE_RECORDS) for record in records]
            for part in packed(sizes, MAX_WRITE_BYTES):
                entries = [(entry, owner_in(records[at].headers)) for at in part if (entry := self._entry(records[at]))]
                for some in owned_alike(entries):
                    await self._write(await self._without_foreign(some))
                done = part.stop
                await asyncio.sleep(0)
                if self.clock() >= until:
                    break
        return done

    def count(self, outcome: str, number: int = 1) -> None:
        self.metrics.archived.labels(outcome).inc(number)

    async def _write(self, entries: list[Entry]) -> None:
        if not entries:
            return
        await self.steps.retry_until_success(
            STAGE, lambda: write(self.archive, entries, repeats_edit=self.repeats_edit)
        )
        messages = sum(isinstance(entry, ArchivedMessage) for entry in entries)
        self.count(ARCHIVED, messages)
        self.count(AMENDED, len(entries) - messages)

    async def _without_foreign(self, entries: Sequence[Claimed]) -> list[Entry]:
        """Leave out messages that claim a conversation of another user, of which the segmenter makes dead letters."""
        messages = [(entry.message, claim) for entry, claim in entries if isinstance(entry, ArchivedMessage)]
        claimed = [message.conversation_id for message, claim in messages if claim]
        if not claimed:
            return [entry for entry, _ in entries]
        owners = await self.steps.retry_until_success(STAGE, lambda: self.archive.owners(claimed))
        kept: list[Entry] = []
        for entry, claim in entries:
            if isinstance(entry, ArchivedMessage):
                message = entry.message
                user, _ = owners.setdefault(message.conversation_id, Whose(message.user_id, message.tenant_id))
                if claim and user not in ("", claim.user_id) and user != await self._present(entry, claim):
                    self.count(INVALID)
                    continue
            kept.append(entry)
        return kept

    async def _present(self, archived: ArchivedMessage, claim: EventOwner) -> str:
        """Return to whom the claim's user's message was assigned, perhaps by a summarizer that is ahead."""
        message = archived.message
        known = await self.steps.retry_until_success(
            STAGE, lambda: self.archive.present_users(message.conversation_id, message.tenant_id)
        )
        return known.of(claim.user_id or "", archived.offset)

    def _entry(self, record: KafkaRecord) -> Entry | None:
        try:
            event = decode_input(record.key, record.value, record.headers, record.timestamp)
        except InvalidRecord as error:
            self.count(INVALID)
            where = {"partition": record.partition, "offset": record.offset}
            log.debug("record_not_archived", stage=STAGE, error_type=error.error_type, **where)
            return None
        if self.redaction:
            event = self.redaction.event(event)
        if isinstance(event, ConversationFlush):
            self.count(OTHER)
            return None
        if isinstance(event, MessageCreated):
            return ArchivedMessage(event, record.partition, record.offset)
        return ArchiveChange(event, record.partition, record.offset)


def owned_alike(entries: Iterable[Claimed]) -> Iterator[list[Claimed]]:
    """Divide the entries after each that may give a conversation to another user, whose later messages need it."""
    some: list[Claimed] = []
    for entry, claim in entries:
        some.append((entry, claim))
        if isinstance(entry, ArchiveChange) and isinstance(entry.event, ConversationAssigned | ConversationDeleted):
            yield some
            some = []
    yield some


async def write(archive: MessageArchive, entries: Sequence[Entry], *, repeats_edit: bool = True) -> None:
    """Write in log order, batching consecutive messages. Repeating a write is harmless.

    Raises: StoreUnavailable.
    """
    get_current_span().set_attribute("afterword.message_count", len(entries))
    messages: list[ArchivedMessage] = []
    for entry in (*entries, None):
        if isinstance(entry, ArchivedMessage):
            messages.append(entry)
            continue
        if messages:
            await archive.put_many(messages, repeats_edit=repeats_edit)
            messages = []
        if entry is not None:
            await archive.change(entry)
