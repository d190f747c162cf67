"""Dead-letter queues: reading, replaying and discarding dead letters.

Dead letters are never deleted. A later record in the same partition says what became of a dead letter; its headers name
the dead letter's offset. It is written in the same transaction as the replayed record, and expires after the dead
letter.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from aiokafka import AIOKafkaProducer
from aiokafka.errors import BrokerResponseError, IllegalOperation, KafkaError, ProducerFenced

from afterword.operating.topics import LARGE_RECORD_BYTES
from afterword.schemas.base import rfc3339
from afterword.schemas.dead_letters import (
    ARCHIVE,
    DEAD_LETTER_PREFIX,
    DeadLetter,
    is_offset,
    read_dead_letter,
)
from afterword.schemas.records import RESERVED_PREFIX, Headers, KafkaRecord, header
from afterword.streams.errors import AfterwordError
from afterword.streams.ingest.sources import load_sources, source_topics
from afterword.streams.kafka.clients import (
    Position,
    broker_errors,
    client_options,
    position_of,
    require_topics,
    send_copy,
    start_client,
)
from afterword.streams.kafka.log_reader import Log, open_log
from afterword.streams.settings import Kafka, Settings

RESOLUTION_PREFIX = RESERVED_PREFIX + "dlq."
BATCH = 200
"""Number of dead letters per transaction."""
OVERTAKEN = (-1, 48, 90)
"""Kafka's codes for a transaction that another producer ended: unknown error, invalid state, fenced producer."""

Action = Literal["replayed", "discarded"]


@dataclass(frozen=True)
class Filters:
    """Filters that must all match. `since` refers to the failure, and is inclusive."""

    stage: str | None = None
    error_type: str | None = None
    since: datetime | None = None
    conversation_id: str | None = None

    def __call__(self, dead_letter: DeadLetter) -> bool:
        return (
            self.stage in (None, dead_letter.stage)
            and self.error_type in (None, dead_letter.error_type)
            and self.conversation_id in (None, dead_letter.conversation_id)
            and (self.since is None or dead_letter.failed_at >= self.since)
        )


Matching = Callable[[DeadLetter], bool]
"""Returns whether a dead letter is selected."""


def resolved_offset(record: KafkaRecord) -> int | None:
    """Return the offset of the dead letter that a record resolves; None if it is a dead letter itself.

    A resolution has no key, no value and no failure headers, so a record with a forged offset does not count.
    """
    offset = header(record.headers, RESOLUTION_PREFIX + "offset")
    if not is_offset(offset) or record.key is not None or record.value:
        return None
    failed = any(name.startswith(DEAD_LETTER_PREFIX) for name, _ in record.headers)
    return None if failed else int(offset or "")


def resolution(dead_letter: DeadLetter, action: Action, now: datetime) -> Headers:
    """Build the headers of the record that says what became of a dead letter."""
    named = {"offset": str(dead_letter.offset), "action": action, "timestamp": rfc3339(now)}
    return [(RESOLUTION_PREFIX + name, value.encode()) for name, value in named.items()]


class ReplayOverlaps(AfterwordError):
    """another replay or discard of {topic} was started, so this one stopped; each dead letter was resolved once"""


class NoSuchDeadLetter(AfterwordError):
    """no dead letter at {address}"""


@dataclass
class DeadLetterCounts:
    """Counts of unresolved dead letters that match the filters."""

    resolved: int = 0
    by_type: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    """Dead letters that can be discarded but not replayed, by the reason."""


def queue_topics(kafka: Kafka) -> list[str]:
    """Return the topics that hold dead letters, without those of sources."""
    return [*map(kafka.dead_letters, (kafka.messages_topic, kafka.episodes_topic)), kafka.undelivered_topic]


@asynccontextmanager
async def open_queue(settings: Settings) -> AsyncIterator["DeadLetterQueue"]:
    """Open the dead-letter queues of all topics, including those of ingest's sources.

    Raises: BrokerUnavailable, TopicMissing, ConfigurationError.
    """
    await require_topics(settings.kafka, *queue_topics(settings.kafka))
    with broker_errors(settings.kafka.bootstrap_servers):
        async with open_log(settings.kafka) as log:
            yield DeadLetterQueue(settings, log)


class DeadLetterQueue:
    """The dead letters of all topics, read without a consumer group and resolved exactly once."""

    def __init__(self, settings: Settings, log: Log) -> None:
        """Raises: ConfigurationError."""
        self._kafka = settings.kafka
        self.log = log
        self.sources = load_sources(settings)

    async def topics(self) -> list[str]:
        """Return the topics that hold dead letters: our own, and those that exist for the sources."""
        existing = await self.log.topics() if self.sources else set()
        read = source_topics(self.sources, existing, self._kafka.own_topics)
        return queue_topics(self._kafka) + [topic for topic in map(self._kafka.dead_letters, read) if topic in existing]

    async def unresolved(self, topic: str, is_wanted: Matching) -> AsyncGenerator[DeadLetter, None]:
        """Yield matching dead letters that were neither replayed nor discarded, by partition and offset.

        Raises: TopicStalled.
        """
        resolved: set[Position] = set()
        async for record in self.log.records(topic):
            if (offset := resolved_offset(record)) is not None:
                resolved.add(Position(record.partition, offset))
        async for record in self.log.records(topic):
            if resolved_offset(record) is None and position_of(record) not in resolved:
                letter = read_dead_letter(record)
                if is_wanted(letter):
                    yield letter

    async def find(self, address: str) -> DeadLetter:
        """Find the dead letter at `address`, topic/partition/offset. Raises: NoSuchDeadLetter, TopicStalled."""
        topic, *place = address.rsplit("/", 2)
        if len(place) == 2 and all(map(is_offset, place)) and topic in await self.topics():
            record = await self.log.record_at(topic, *map(int, place))
            if record is not None and resolved_offset(record) is None:
                return read_dead_letter(record)
        raise NoSuchDeadLetter(address=address)

    async def count(self, topic: str, is_wanted: Matching, action: Action) -> DeadLetterCounts:
        """Count what `resolve` would do."""
        counts = DeadLetterCounts()
        async for letter in self.unresolved(topic, is_wanted):
            _count(counts, letter, action)
        return counts

    async def resolve(
        self, topic: str, is_wanted: Matching, action: Action, progress: Callable[[str, int], None] = lambda *_: None
    ) -> DeadLetterCounts:
        """Replay or discard matching dead letters, with one transaction for each batch of originals and resolutions.

        The producer is opened first. This aborts a transaction that an earlier run left open, and fences a run that is
        still going, so reading afterwards sees everything. `progress` is called with the topic and the number of
        dead letters so far.

        Raises: ReplayOverlaps, KafkaError, BrokerUnavailable, TopicMissing, TopicStalled.
        """
        counts = DeadLetterCounts()
        async with self._producer(topic) as producer:
            batch: list[DeadLetter] = []
            async for letter in self.unresolved(topic, is_wanted):
                if _count(counts, letter, action):
                    batch.append(letter)
                if len(batch) == BATCH:
                    await self._commit(producer, batch, action)
                    progress(topic, counts.resolved)
                    batch.clear()
            await self._commit(producer, batch, action)
        return counts

    async def _commit(self, producer: AIOKafkaProducer, dead_letters: Sequence[DeadLetter], action: Action) -> None:
        if not dead_letters:
            return
        sent: list[Awaitable[object]] = []
        try:
            async with producer.transaction():
                for letter in dead_letters:
                    if action == "replayed":
                        assert letter.origin is not None  # noqa: S101 – only those with an origin are replayed
                        topic, partition, _ = letter.origin
                        # the original partition, because the original producer may have used another partitioner
                        target = partition if partition in await producer.partitions_for(topic) else None
                        sent.append(await send_copy(producer, topic, letter, target))
                    headers = resolution(letter, action, datetime.now(UTC))
                    sent.append(await producer.send(letter.topic, b"", partition=letter.partition, headers=headers))
                await asyncio.gather(*sent)
        except (KafkaError, IllegalOperation) as error:
            # the error may only say that nothing more can be sent; an earlier send then has the cause
            results = await asyncio.gather(*sent, return_exceptions=True)
            causes = [result for result in results if isinstance(result, KafkaError)]
            why = causes[0] if causes and isinstance(error, IllegalOperation) else error
            if is_overtaken(why):
                raise ReplayOverlaps(topic=dead_letters[0].topic) from None
            raise why from why.__cause__
        finally:
            await asyncio.gather(*sent, return_exceptions=True)

    @asynccontextmanager
    async def _producer(self, topic: str) -> AsyncIterator[AIOKafkaProducer]:
        options = client_options(self._kafka)
        producer = AIOKafkaProducer(
            **options,
            transactional_id=f"{self._kafka.group_of('dlq')}-{topic}",
            acks="all",
            max_request_size=LARGE_RECORD_BYTES,
        )
        try:
            await start_client(producer, options)
            yield producer
        finally:
            await producer.stop()


def _count(counts: DeadLetterCounts, letter: DeadLetter, action: Action) -> bool:
    """Count a dead letter, and return whether it can be resolved."""
    counts.by_type[letter.error_type] += 1
    if action == "replayed" and (reason := not_replayable(letter)):
        counts.skipped[reason] += 1
        return False
    counts.resolved += 1
    return True


def not_replayable(letter: DeadLetter) -> str | None:
    """Return why a dead letter cannot be replayed, or None if it can."""
    if letter.origin is None:
        return "not written by Afterword"
    if letter.stage == ARCHIVE:  # the segmenter has the message
        return "from the archiver only"
    return "truncated because of their size" if letter.truncated else None


def is_overtaken(error: Exception) -> bool:
    """Return whether another producer with this transactional id ended the transaction.

    aiokafka reports that in several ways: as a fenced producer, as a transaction that was never begun, or as the cause
    of an unexpected error. The last happens if the coordinator has changed its state or is about to: a commit that
    arrives between the fence and the abort is an illegal state there, answered as an unknown server error.
    """
    return isinstance(error, ProducerFenced | IllegalOperation) or (
        isinstance(error.__cause__, BrokerResponseError) and error.__cause__.errno in OVERTAKEN
    )
