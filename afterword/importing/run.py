"""Running an import: the outcomes of a reader, in order, to the topic `messages`."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

import orjson
from opentelemetry.trace import Tracer

from afterword.importing.files import Opened
from afterword.importing.formats import FORMATS
from afterword.importing.outcomes import ImportOptions, ImportOutcome, LeftOut, Rejected
from afterword.importing.position import ImportPosition, load_position, save_position
from afterword.produce import Pace
from afterword.producer import Producer
from afterword.schemas import ConversationFlush, MessageCreated
from afterword.schemas.ids import message_key
from afterword.streams.errors import AfterwordError
from afterword.streams.kafka import broker_errors
from afterword.streams.log_reader import open_log
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.opening import open_stores

SOURCE = "afterword/import"
BATCH = 500
"""Outcomes between two positions. A run that goes on sends those of one batch again at most; they are duplicates while
they are within the segmenter's `dedupe_window`."""
BATCH_CHARACTERS = 8_000_000
"""A batch is in memory as a whole, and so is what the archive has of it."""
OPEN_CONVERSATIONS = 256
"""Conversations that may go on before the one that was idle for longest is flushed: threads of a channel are mixed."""

ShowPosition = Callable[[ImportPosition], None]
ShowRejected = Callable[[Rejected], None]


ARCHIVE_SECONDS = 60.0
POLL_SECONDS = 0.2


class ArchiveBehind(AfterwordError):
    """the archiver has {number:,} records of {topic} to take yet, so that it is not known which messages are there
    already: let it catch up, or use --no-check-archive"""


class Sends(Protocol):
    """The part of a `Producer` that an import needs."""

    async def enqueue(self, event: MessageCreated | ConversationFlush) -> None: ...

    async def drain(self) -> None: ...


@dataclass(frozen=True)
class ImportPlan:
    """History to import, and the options for it."""

    format: str
    options: ImportOptions
    flush: bool = True
    check_archive: bool = True
    rate: float | None = None
    """Records a second at most."""

    def fingerprint(self, files: Opened) -> str:
        """Digest of all that decides which outcomes there are, and in which order."""
        told = [self.format, self.options.user_id, self.options.tenant_id, self.options.prefix, files.fingerprint]
        return hashlib.sha256(orjson.dumps(told)).hexdigest()


def count_history(plan: ImportPlan, files: Opened, progress: ShowPosition, report: ShowRejected) -> ImportPosition:
    """Read a history without sending anything. Raises: HistoryRefused, OSError."""
    position = ImportPosition("")
    outcomes = FORMATS[plan.format](files, plan.options)
    while batch := next_batch(outcomes, BATCH):
        messages = _counted(batch, position, report)
        position.counts.messages += len(messages)
        progress(position)
    return position


async def import_history(
    settings: Settings,
    plan: ImportPlan,
    files: Opened,
    path: Path,
    progress: ShowPosition,
    report: ShowRejected,
    tracer: Tracer | None = None,
) -> ImportPosition | None:
    """Send what was not sent yet; return when the broker has acknowledged every record. None: all was sent before.

    `path`: of the position, which is saved after each batch.

    Raises: HistoryRefused, ArchiveBehind, OSError, TopicMissing, BrokerUnavailable, StoreUnavailable,
    ConfigurationError.
    """
    fingerprint = plan.fingerprint(files)
    before = load_position(path, fingerprint)
    if before and before.finished:
        return None
    position = before or ImportPosition(fingerprint)
    async with AsyncExitStack() as running:
        producer = await running.enter_async_context(Producer.from_settings(settings, source=SOURCE, tracer=tracer))
        stores = await running.enter_async_context(open_stores(settings))
        archive = stores.messages if plan.check_archive else None
        if archive and before is None:  # what an interrupted run sent is known from its position
            await until_archived(settings.kafka)
        importing = Import(producer, archive, plan, position, may_be_sent=before is not None)
        outcomes = FORMATS[plan.format](files, plan.options)
        await asyncio.to_thread(save_position, path, position)
        await asyncio.to_thread(_pass_over, outcomes, position.done)
        size = min(BATCH, max(1, settings.episodes.dedupe_window // 2))
        while batch := await asyncio.to_thread(next_batch, outcomes, size):
            await importing.take(batch, report)
            await asyncio.to_thread(save_position, path, position)
            progress(position)
        await importing.finish()
        await asyncio.to_thread(save_position, path, position)
    return position


async def until_archived(kafka: Kafka, seconds: float = ARCHIVE_SECONDS) -> None:
    """Wait until the archiver has taken what is on `messages` now, such as an earlier import.

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


def next_batch(outcomes: Iterator[ImportOutcome], size: int) -> list[ImportOutcome]:
    """Take the next outcomes, fewer of large messages; none at the end."""
    batch: list[ImportOutcome] = []
    characters = 0
    for outcome in outcomes:
        batch.append(outcome)
        characters += len(outcome.content) if isinstance(outcome, MessageCreated) else 0
        if len(batch) >= size or characters > BATCH_CHARACTERS:
            break
    return batch


def _pass_over(outcomes: Iterator[ImportOutcome], number: int) -> None:
    for _ in islice(outcomes, number):
        pass


class Import:
    """Sends outcomes, and moves the position past those whose records are acknowledged."""

    def __init__(
        self,
        producer: Sends,
        archive: MessageArchive | None,
        plan: ImportPlan,
        position: ImportPosition,
        *,
        may_be_sent: bool,
    ) -> None:
        """`may_be_sent`: a run that was interrupted may have sent the first batch, or a part of it."""
        self._producer = producer
        self._archive = archive
        self._flush = plan.flush
        self._pace = Pace(plan.rate)
        self._position = position
        self._may_be_sent = may_be_sent

    async def take(self, batch: Sequence[ImportOutcome], report: ShowRejected) -> None:
        """Send the messages of a batch that the archive does not have. Raises: BrokerUnavailable, StoreUnavailable."""
        position = self._position
        messages = _counted(batch, position, report)
        new = await self._new(messages)
        for message in new:
            await self._send(message)
        for message in messages if self._may_be_sent else new:  # their flush was not sent yet
            position.open.pop(message.conversation_id, None)
            position.open[message.conversation_id] = message.tenant_id
        await self._flush_all_but(OPEN_CONVERSATIONS)
        await self._producer.drain()
        self._may_be_sent = False
        position.counts.messages += len(new)
        position.counts.known += len(messages) - len(new)

    async def finish(self) -> None:
        """Flush what is open still. Raises: BrokerUnavailable."""
        await self._flush_all_but(0)
        await self._producer.drain()
        self._position.finished = True

    async def _new(self, messages: Sequence[MessageCreated]) -> Sequence[MessageCreated]:
        if self._archive is None or not messages:
            return messages
        known = await self._archive.states([_key(message) for message in messages])
        return [message for message in messages if _key(message) not in known]

    async def _flush_all_but(self, number: int) -> None:
        conversations = self._position.open
        for conversation_id in list(islice(conversations, max(0, len(conversations) - number))):
            tenant_id = conversations.pop(conversation_id)
            if self._flush:
                event = ConversationFlush(conversation_id=conversation_id, tenant_id=tenant_id, reason="imported")
                await self._send(event)
                self._position.counts.flushes += 1

    async def _send(self, event: MessageCreated | ConversationFlush) -> None:
        await self._pace.wait()
        await self._producer.enqueue(event)


def _key(message: MessageCreated) -> str:
    return message_key(message.conversation_id, message.id, message.tenant_id)


def _counted(batch: Sequence[ImportOutcome], position: ImportPosition, report: ShowRejected) -> list[MessageCreated]:
    """Count what is not to be sent, and return the rest."""
    position.done += len(batch)
    for outcome in batch:
        if isinstance(outcome, LeftOut):
            position.counts.left_out[outcome.reason] += 1
        elif isinstance(outcome, Rejected):
            position.counts.rejected += 1
            report(outcome)
    return [outcome for outcome in batch if isinstance(outcome, MessageCreated)]
