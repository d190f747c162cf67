"""Runs an import: sends the messages of a history, in order, to the topic `messages`."""

import asyncio
import hashlib
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import islice
from typing import Any

from opentelemetry.trace import Tracer

from afterword.schemas import ConversationFlush, MessageCreated
from afterword.schemas.ids import message_key
from afterword.schemas.messages import MESSAGE_CREATED
from afterword.streams.errors import AfterwordError
from afterword.streams.kafka.clients import broker_errors
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.messages import NEVER, ArchivedMessage, DeletedMessage, MessageArchive
from afterword.streams.stores.opening import open_stores
from afterword.writing.importing import chatgpt, claude, messages
from afterword.writing.importing.outcomes import (
    Found,
    ImportOptions,
    ImportOutcome,
    LeftOut,
    Refused,
    Rejected,
    found,
    owner_of,
    user_of,
)
from afterword.writing.importing.records import BLANK, Malformed, records
from afterword.writing.produce import Pace
from afterword.writing.producer import Producer

SOURCE = "afterword/import"
BATCH = 500
BATCH_CHARACTERS = 8_000_000
"""Upper limit for a batch, which is held in memory together with its counterparts from the archive."""
OPEN_CONVERSATIONS = 256
"""When more conversations than this are open, the one idle for longest is flushed. Lines may mix conversations."""
ARCHIVE_SECONDS = 60.0
POLL_SECONDS = 0.2

ShowCounts = Callable[["ImportCounts"], None]
ShowRejected = Callable[[Rejected], None]


class ArchiveBehind(AfterwordError):
    """the archiver is {number:,} records of {topic} behind, so it is not known which messages are already
    archived: start it, or let it catch up"""


@dataclass(frozen=True)
class ImportPlan:
    """The format of a history and the options of its import."""

    format: str
    options: ImportOptions
    flush: bool = True
    rate: float | None = None
    """Upper limit in records per second."""


@dataclass
class ImportCounts:
    """Counts of messages. Each message that was read is either sent, a duplicate, or rejected."""

    sent: int = 0
    duplicates: int = 0
    """Messages that the archive has, including deleted ones, and repeats within this history."""
    rejected: int = 0
    flushes: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Parts of the history that are not messages, by reason."""

    @property
    def read(self) -> int:
        return self.sent + self.duplicates + self.rejected


def read_history(plan: ImportPlan, files: Iterator[tuple[str, BufferedReader]]) -> Iterator[ImportOutcome]:
    """Read the records of the files in a deterministic order. Raises: OSError."""
    of_one_person = plan.format in ("chatgpt", "claude") and plan.options.user_id is not None
    owner: dict[str, Any] = {}
    for name, file in files:
        read = records(file, is_lines=plan.format == "jsonl" or name.lower().endswith((".jsonl", ".ndjson")))
        for number, record in enumerate(messages.conversations(read) if plan.format == "messages" else read, start=1):
            where = f"{name}:{number}"
            owner = owner or owner_of(record)
            if of_one_person and owner_of(record) not in ({}, owner):
                reason = "it belongs to another person than the conversations before it, but --user names only one"
                yield Rejected(where, reason)
                continue
            if not isinstance(record, Malformed):
                yield from FORMATS[plan.format](where, record, plan.options)
            elif record is not BLANK:
                yield Rejected(where, record.reason)


def _read_line(where: str, record: Any, options: ImportOptions) -> Iterator[ImportOutcome]:
    """Read a message as `afterword produce` accepts it."""
    if not isinstance(record, dict):
        yield Rejected(where, "schema_violation: not a JSON object")
    elif record.get("type", MESSAGE_CREATED) != MESSAGE_CREATED:
        yield Rejected(where, "not a message; send edits, deletions and flushes with afterword produce")
    elif not isinstance(record.get("conversation_id"), str):
        yield Rejected(where, "schema_violation: conversation_id: a string is required")
    else:
        try:
            user = {} if "user_id" in record else {"user_id": user_of(record) or options.user_id}
        except Refused as error:
            yield Rejected(where, str(error))
            return
        yield found(where, options, {**record, **user}, is_shared=True)


FORMATS = {"chatgpt": chatgpt.read, "claude": claude.read, "messages": messages.read, "jsonl": _read_line}


async def import_history(
    settings: Settings,
    plan: ImportPlan,
    outcomes: Iterator[ImportOutcome],
    progress: ShowCounts,
    report: ShowRejected,
    tracer: Tracer | None = None,
) -> ImportCounts:
    """Send the messages that the archive lacks. Returns once the broker has acknowledged every record.

    Raises: ArchiveBehind, OSError, TopicMissing, BrokerUnavailable, StoreUnavailable, ConfigurationError.
    """
    async with AsyncExitStack() as running:
        producer = await running.enter_async_context(Producer.from_settings(settings, source=SOURCE, tracer=tracer))
        stores = await running.enter_async_context(open_stores(settings))
        await until_archived(settings.kafka)
        importing = Import(producer, stores.messages, plan, report, settings.redaction.where != "everywhere")
        return await importing.run(outcomes, progress)


async def count_history(
    plan: ImportPlan, outcomes: Iterator[ImportOutcome], progress: ShowCounts, report: ShowRejected
) -> ImportCounts:
    """Read a history without sending anything or asking the archive what is new. Raises: OSError."""
    return await Import(None, None, plan, report).run(outcomes, progress)


async def until_archived(kafka: Kafka, seconds: float = ARCHIVE_SECONDS) -> None:
    """Wait until the archiver has processed what is on `messages` now, such as an earlier import.

    Raises: ArchiveBehind, BrokerUnavailable.
    """
    deadline = time.monotonic() + seconds
    async with open_log(kafka) as log:
        with broker_errors(kafka.bootstrap_servers):
            ends = await log.ends(kafka.messages_topic)
            while number := await log.left(kafka.archiver_id, kafka.messages_topic, ends):
                if time.monotonic() > deadline:
                    raise ArchiveBehind(number=number, topic=kafka.messages_topic)
                await asyncio.sleep(POLL_SECONDS)


def next_batch(outcomes: Iterator[ImportOutcome]) -> list[ImportOutcome]:
    """Take the next outcomes, fewer if messages are large; an empty list at the end."""
    batch: list[ImportOutcome] = []
    characters = 0
    for outcome in outcomes:
        batch.append(outcome)
        characters += len(outcome.message.content) if isinstance(outcome, Found) else 0
        if len(batch) >= BATCH or characters > BATCH_CHARACTERS:
            break
    return batch


class Import:
    """Sends the new messages of a history and accounts for all others.

    Without a producer nothing is sent. Without an archive, only repeats within the history are recognized.
    """

    def __init__(
        self,
        producer: Producer | None,
        archive: MessageArchive | None,
        plan: ImportPlan,
        report: ShowRejected,
        compare_contents: bool = True,
    ) -> None:
        """`compare_contents` says that the archive stores contents as they were sent."""
        self.counts = ImportCounts()
        self._producer = producer
        self._archive = archive
        self._flush = plan.flush
        self._report = report
        self._compare_contents = compare_contents
        self._pace = Pace(plan.rate)
        self._seen = _Seen()
        self._open: dict[str, str | None] = {}
        """Conversations with unflushed messages and their tenants, the longest idle first."""

    async def run(self, outcomes: Iterator[ImportOutcome], progress: ShowCounts) -> ImportCounts:
        """Send all messages and flush their conversations. Raises: OSError, BrokerUnavailable, StoreUnavailable."""
        while batch := await asyncio.to_thread(next_batch, outcomes):
            await self._take(batch)
            await self._flush_all_but(OPEN_CONVERSATIONS)
            progress(self.counts)
        await self._flush_all_but(0)
        return self.counts

    async def _take(self, batch: Sequence[ImportOutcome]) -> None:
        new: list[Found] = []
        for outcome in batch:
            if isinstance(outcome, LeftOut):
                self.counts.left_out[outcome.reason] += outcome.number
            elif isinstance(outcome, Rejected):
                self._reject(outcome)
            elif await self._is_of_its_conversation(outcome) and self._is_first(outcome):
                new.append(outcome)
        archived = await self._archive.states([_key(one.message) for one in new]) if self._archive and new else {}
        for where, message, _ in new:
            known = archived.get(_key(message))
            if known is not None:
                if self._is_same(message, known):
                    self.counts.duplicates += 1
                else:
                    self._reject(Rejected(where, "the archive has another message with its id in this conversation"))
                continue
            await self._send(message)
            self._open.pop(message.conversation_id, None)
            self._open[message.conversation_id] = message.tenant_id
            self.counts.sent += 1

    async def _is_of_its_conversation(self, outcome: Found) -> bool:
        """Reject a message whose conversation belongs to another user or tenant, in this history or the archive."""
        message = outcome.message
        if outcome.is_shared:
            return True
        key = f"conversation {message.conversation_id}"
        owner = f"{message.tenant_id!r} {message.user_id!r}"
        known = self._seen.get(key)
        if known is None:
            first = await self._archive.first(message.conversation_id) if self._archive else None
            known = _digest(f"{first.message.tenant_id!r} {first.message.user_id!r}" if first else owner)
            self._seen.put(key, known)
        if known == _digest(owner):
            return True
        problem = "another user or tenant has a conversation with this id; make ids distinct with --prefix"
        self._reject(Rejected(outcome.where, problem))
        return False

    def _is_first(self, outcome: Found) -> bool:
        message = outcome.message
        key = f"message {_key(message)}"
        said = _digest(f"{message.user_id!r} {message.role} {message.tools} {message.content}")
        known = self._seen.get(key)
        if known is None:
            self._seen.put(key, said)
        elif known == said:
            self.counts.duplicates += 1
        else:
            self._reject(Rejected(outcome.where, "another message of its conversation has the same id"))
        return known is None

    def _is_same(self, message: MessageCreated, known: ArchivedMessage | DeletedMessage) -> bool:
        if isinstance(known, DeletedMessage):
            return True
        is_as_sent = self._compare_contents and known.changed == NEVER
        return (known.message.user_id, known.message.role) == (message.user_id, message.role) and (
            not is_as_sent or known.message.content == message.content
        )

    async def _flush_all_but(self, number: int) -> None:
        for conversation_id in list(islice(self._open, max(0, len(self._open) - number))):
            tenant_id = self._open.pop(conversation_id)
            if self._flush:
                event = ConversationFlush(conversation_id=conversation_id, tenant_id=tenant_id, reason="imported")
                await self._send(event)
                self.counts.flushes += 1
        if self._producer:
            await self._producer.drain()

    async def _send(self, event: MessageCreated | ConversationFlush) -> None:
        if self._producer:
            await self._pace.wait()
            await self._producer.enqueue(event)

    def _reject(self, rejected: Rejected) -> None:
        self.counts.rejected += rejected.messages
        self._report(rejected)


class _Seen:
    """Digests of the messages seen so far, by key, in a temporary database on disk so that memory stays bounded."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("CREATE TABLE seen (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")

    def get(self, key: str) -> bytes | None:
        row = self._database.execute("SELECT value FROM seen WHERE key = ?", (_digest(key),)).fetchone()
        return row[0] if row else None

    def put(self, key: str, value: bytes) -> None:
        self._database.execute("INSERT INTO seen VALUES (?, ?)", (_digest(key), value))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _key(message: MessageCreated) -> str:
    return message_key(message.conversation_id, message.id, message.tenant_id)
