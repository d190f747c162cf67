"""`messages` → MongoDB, in bulk: every message as it was produced, before and whatever becomes of it.

Records that cannot be taken are only counted here. The segmenter reads the same topic and writes each of them to
`messages.dlq`, in the transaction that commits its offset; a second dead letter from here would be a duplicate.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError

from afterword.consumers.archiver_observer import Observer
from afterword.schemas import InvalidRecord, MessageCreated, decode_input
from afterword.streams.errors import StoreUnavailable
from afterword.streams.runtime.health import Readiness
from afterword.streams.runtime.lag import Work
from afterword.streams.stores.messages import ArchivedMessage, MessageWriter

log = structlog.get_logger(__name__)

STAGE = "archive"
MAX_BATCH = 2000
"""Records of one write."""
POLL_MILLISECONDS = 500
"""How soon a stop is noticed while nothing arrives."""
FIRST_RETRY_SECONDS = 0.2
LAST_RETRY_SECONDS = 10.0

PARTITIONS = "partitions"
MONGODB = "mongodb"
CONDITIONS = (PARTITIONS, MONGODB)


@dataclass
class Counts:
    """Records since the start."""

    archived: int = 0
    invalid: int = 0
    other: int = 0
    """Flushes: they are no messages."""


class Archiver:
    """Archives what the consumer reads until it is stopped, and commits after each write.

    A batch is in the archive before its offsets are committed, so it may be written again after a crash; the archive
    keeps what was there first. While the archive is away the batch is kept and tried again.
    """

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        archive: MessageWriter,
        health: Readiness,
        observer: Observer = Observer(),  # noqa: B008 – does nothing, keeps nothing
    ) -> None:
        self.counts = Counts()
        self._work: dict[TopicPartition, Work] = {}
        self._consumer = consumer
        self._archive = archive
        self._health = health
        self._observer = observer

    async def run(self, stop: asyncio.Event) -> None:
        """Ends after the batch under way once `stop` is set. Cancelling drops that batch uncommitted."""
        while not stop.is_set():
            batch = await self._consumer.getmany(timeout_ms=POLL_MILLISECONDS, max_records=MAX_BATCH)
            self._note_assignment()
            if batch:
                await self._take(batch)

    def work(self, source: TopicPartition) -> Work:
        """What it is at."""
        return self._work.get(source, Work())

    async def _take(self, batch: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
        records = [record for found in batch.values() for record in found]
        self._work |= {source: in_hand(found) for source, found in batch.items()}
        with self._observer.batch(records):
            await self._write(self._messages(records))
            await self._commit({source: found[-1].offset + 1 for source, found in batch.items()})
        self._work |= {source: done(found) for source, found in batch.items()}

    async def _write(self, messages: list[ArchivedMessage]) -> None:
        if messages:
            with self._observer.writing(len(messages)):
                await self._until_written(messages)
            self.counts.archived += len(messages)

    async def _until_written(self, messages: list[ArchivedMessage]) -> None:
        delay = FIRST_RETRY_SECONDS
        while not await self._written(messages):
            await asyncio.sleep(delay)
            delay = min(2 * delay, LAST_RETRY_SECONDS)

    async def _written(self, messages: list[ArchivedMessage]) -> bool:
        try:
            await self._archive.put_many(messages)
        except StoreUnavailable as error:
            self._health.not_ready(MONGODB, error.error_type)
            log.warning("archive_unavailable", stage=STAGE, error_type=error.error_type, problem=str(error))
            return False
        self._health.ready(MONGODB)
        return True

    def _messages(self, records: Iterable[ConsumerRecord]) -> list[ArchivedMessage]:
        found = (self._message(record) for record in records)
        return [message for message in found if message is not None]

    def _message(self, record: ConsumerRecord) -> ArchivedMessage | None:
        try:
            event = decode_input(record.key, record.value, record.headers, record.timestamp)
        except InvalidRecord as error:
            self.counts.invalid += 1
            where = {"partition": record.partition, "offset": record.offset}
            log.debug("record_not_archived", stage=STAGE, error_type=error.error_type, **where)
            return None
        if isinstance(event, MessageCreated):
            return ArchivedMessage(event, record.partition, record.offset)
        self.counts.other += 1
        return None

    async def _commit(self, offsets: dict[TopicPartition, int]) -> None:
        try:
            await self._consumer.commit(offsets)
        except (CommitFailedError, IllegalStateError):
            # a rebalance came first: whoever has the partition now writes the same messages again, to no effect
            log.info("commit_overtaken", stage=STAGE)

    def _note_assignment(self) -> None:
        assigned = self._consumer.assignment()
        self._work = {source: work for source, work in self._work.items() if source in assigned}
        if assigned:
            self._health.ready(PARTITIONS)
        else:
            self._health.not_ready(PARTITIONS, "none_assigned")


def in_hand(records: list[ConsumerRecord]) -> Work:
    return Work(records[0].offset, records[0].timestamp)


def done(records: list[ConsumerRecord]) -> Work:
    return Work(records[-1].offset + 1, done_ms=records[-1].timestamp)
