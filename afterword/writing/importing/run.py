"""Runs an import: sends the messages of a history, in order, to the topic `messages`."""

import asyncio
import hashlib
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice

from opentelemetry.trace import Tracer

from afterword.schemas import ConversationFlush, MessageCreated
from afterword.schemas.base import message_key
from afterword.streams.errors import AfterwordError, StoreUnavailable
from afterword.streams.kafka.clients import broker_errors
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.messages import NEVER, ArchivedMessage, DeletedMessage, MessageArchive
from afterword.streams.stores.opening import open_stores
from afterword.writing.importing.formats import NO_CONVERSATIONS, Found, ImportOutcome, LeftOut, Rejected
from afterword.writing.produce import send_at_rate
from afterword.writing.producer import Producer

SOURCE = "afterword/import"
BATCH = 100
"""The archive is asked about this many messages at once, each of at most 700,000 bytes."""
ARCHIVE_SECONDS = 60.0
POLL_SECONDS = 0.2
ANSWER_SECONDS = 3.0
"""Longest time in which an archive has to answer a dry run."""

ShowCounts = Callable[["ImportCounts"], None]
ShowRejected = Callable[[Rejected], None]


class ArchiveBehind(AfterwordError):
    """the archiver is {number:,} records of {topic} behind, so it is not known which messages are already
    archived: start it, or let it catch up"""


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
    is_compared: bool = True
    """Whether the archive was asked for the messages and conversations that it has."""

    @property
    def read(self) -> int:
        return self.sent + self.duplicates + self.rejected

    @property
    def is_empty(self) -> bool:
        """Whether there was no conversation, not even one that was left out."""
        return not self.read and self.left_out.keys() <= {NO_CONVERSATIONS}


async def import_history(
    settings: Settings,
    outcomes: Iterator[ImportOutcome],
    progress: ShowCounts,
    report: ShowRejected,
    *,
    rate: float | None = None,
    dry_run: bool = False,
    tracer: Tracer | None = None,
) -> ImportCounts:
    """Send the messages that the archive lacks. Returns once the broker has acknowledged every record.

    `rate` limits the records per second. A dry run only reads and counts; it does without an archive that is away.

    Raises: ArchiveBehind, OSError, TopicMissing, BrokerUnavailable, StoreUnavailable, ConfigurationError.
    """
    is_as_sent = settings.redaction.where != "everywhere"
    async with open_stores(settings) as stores:
        archive = stores.messages if not dry_run or await _answers(stores.messages) else None
        importing = Import(progress, report, archive, is_as_sent=is_as_sent)
        if dry_run:
            importing.counts.is_compared = archive is not None
            async for _ in importing.events(outcomes):
                pass
            return importing.counts
        async with Producer.from_settings(settings, source=SOURCE, tracer=tracer) as producer:
            await until_archived(settings.kafka)
            await send_at_rate(producer, importing.events(outcomes), rate)
    return importing.counts


async def _answers(archive: MessageArchive) -> bool:
    with suppress(StoreUnavailable, TimeoutError):
        async with asyncio.timeout(ANSWER_SECONDS):
            await archive.owners([""])
            return True
    return False


async def until_archived(kafka: Kafka, seconds: float = ARCHIVE_SECONDS) -> None:
    """Wait until the archiver has processed the present records of `messages`, such as those of an earlier import.

    Raises: ArchiveBehind, BrokerUnavailable.
    """
    deadline = time.monotonic() + seconds
    async with open_log(kafka) as log:
        with broker_errors(kafka.bootstrap_servers):
            ends = await log.ends(kafka.messages_topic)
            while number := await log.left(kafka.group_of("archiver"), kafka.messages_topic, ends):
                if time.monotonic() > deadline:
                    raise ArchiveBehind(number=number, topic=kafka.messages_topic)
                await asyncio.sleep(POLL_SECONDS)


@dataclass
class Import:
    """Finds the new messages of a history and accounts for all others.

    Without an archive, only repeats within the history are recognized.
    """

    progress: ShowCounts
    report: ShowRejected
    archive: MessageArchive | None = None
    _: KW_ONLY
    is_as_sent: bool = True
    """Whether the archive stores contents as they were sent."""
    counts: ImportCounts = field(default_factory=ImportCounts, init=False)

    def __post_init__(self) -> None:
        # Digests of the messages and conversations seen so far, and the conversations to flush. They are on disk
        # because a history may have millions of messages.
        self._seen = sqlite3.connect("", isolation_level=None)
        self._seen.execute("PRAGMA journal_mode = OFF")
        self._seen.execute("CREATE TABLE seen (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
        self._seen.execute("CREATE TABLE flushes (conversation_id TEXT UNIQUE, tenant_id TEXT)")

    async def events(self, outcomes: Iterator[ImportOutcome]) -> AsyncIterator[MessageCreated | ConversationFlush]:
        """Yield the messages to send, then a flush of each of their conversations. Raises: OSError, StoreUnavailable.

        The archive is asked about many messages at once.
        """
        flush_later = "INSERT INTO flushes VALUES (?, ?) ON CONFLICT DO UPDATE SET tenant_id = excluded.tenant_id"
        with closing(self._seen):
            while batch := await asyncio.to_thread(lambda: list(islice(outcomes, BATCH))):
                for message in await self._new(batch):
                    self._seen.execute(flush_later, (message.conversation_id, message.tenant_id))
                    self.counts.sent += 1
                    yield message
                self.progress(self.counts)
            flushes = self._seen.execute("SELECT conversation_id, tenant_id FROM flushes ORDER BY rowid")
            for conversation_id, tenant_id in flushes:
                self.counts.flushes += 1
                yield ConversationFlush(conversation_id=conversation_id, tenant_id=tenant_id, reason="imported")

    async def _new(self, batch: Sequence[ImportOutcome]) -> list[MessageCreated]:
        first: list[Found] = []
        for outcome in batch:
            if isinstance(outcome, LeftOut):
                self.counts.left_out[outcome.reason] += outcome.number
            elif isinstance(outcome, Rejected):
                self._reject(outcome)
            elif await self._is_of_its_conversation(outcome) and self._is_first(outcome):
                first.append(outcome)
        keys = [key for each in first for key in (_key(each.message), *_originals(each))]
        archived = await self.archive.states(keys) if self.archive and keys else {}
        new = []
        for entry in first:
            where, message = entry.where, entry.message
            known = archived.get(_key(message))
            others = (archived.get(key) for key in _originals(entry))
            if any(self._is_same(message, each) for each in (known, *others)):
                self.counts.duplicates += 1
            elif known is None:
                new.append(message)
            else:
                self._reject(Rejected(where, "the archive has another message with its id in this conversation"))
        return new

    async def _is_of_its_conversation(self, outcome: Found) -> bool:
        """Reject a message whose conversation belongs to another user or tenant, in this history or the archive."""
        message = outcome.message
        if outcome.is_shared:
            return True
        key = f"conversation {message.conversation_id}"
        owner = f"{message.tenant_id!r} {message.user_id!r}"
        known = self._seen_as(key)
        if known is None:
            owners = await self.archive.owners([message.conversation_id]) if self.archive else {}
            whose = owners.get(message.conversation_id)
            known = self._see(key, f"{whose.tenant_id!r} {whose.user_id!r}" if whose else owner)
        if known == _digest(owner):
            return True
        problem = "another user or tenant has a conversation with this id; make ids distinct with --prefix"
        self._reject(Rejected(outcome.where, problem))
        return False

    def _is_first(self, outcome: Found) -> bool:
        message = outcome.message
        key = f"message {_key(message)}"
        said = f"{message.user_id!r} {message.role} {message.tools} {message.content}"
        known = self._seen_as(key)
        if known is None:
            self._see(key, said)
            said = f"{message.tenant_id!r} {message.id} {said}"
            is_copy = self._seen_as(f"{'any' if outcome.copied_from else 'copy'} {said}") is not None
            for kind in ("any", "copy") if outcome.copied_from else ("any",):
                self._see(f"{kind} {said}", said)
            self.counts.duplicates += is_copy
            return not is_copy
        if known == _digest(said):
            self.counts.duplicates += 1
        else:
            self._reject(Rejected(outcome.where, "another message of its conversation has the same id"))
        return False

    def _is_same(self, message: MessageCreated, known: ArchivedMessage | DeletedMessage | None) -> bool:
        if known is None or isinstance(known, DeletedMessage):
            return known is not None
        is_comparable = self.is_as_sent and known.changed == NEVER
        return (known.message.user_id, known.message.role) == (message.user_id, message.role) and (
            not is_comparable or known.message.content == message.content
        )

    def _reject(self, rejected: Rejected) -> None:
        self.counts.rejected += rejected.messages
        self.report(rejected)

    def _seen_as(self, key: str) -> bytes | None:
        row = self._seen.execute("SELECT value FROM seen WHERE key = ?", (_digest(key),)).fetchone()
        return row[0] if row else None

    def _see(self, key: str, value: str) -> bytes:
        self._seen.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (_digest(key), _digest(value)))
        return _digest(value)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _originals(entry: Found) -> list[str]:
    """Return the keys that a copied message has in the conversations it may come from."""
    message = entry.message
    return [message_key(conversation, message.id, message.tenant_id) for conversation in entry.copied_from]


def _key(message: MessageCreated) -> str:
    return message_key(message.conversation_id, message.id, message.tenant_id)
