"""Reading letters, and resolving them: one at a time, exactly once, in bounded memory."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, ProducerFenced

from afterword.audit.log import Log, opened
from afterword.dlq.letters import Action, Filters, Handled, resolution, resolved_offset
from afterword.schemas.dead_letters import DeadLetter, read_dead_letter
from afterword.schemas.headers import Headers
from afterword.streams.errors import AfterwordError, BrokerUnavailable
from afterword.streams.kafka import client_options, require_topics, start_client
from afterword.streams.settings import Kafka
from afterword.topic_specs import LARGE_RECORD_BYTES

BATCH = 200
"""Letters in one transaction."""


class ReplayOverlaps(AfterwordError):
    """another replay or discard of {topic} was begun; this one has stopped, and each letter was resolved once"""


class NoSuchLetter(AfterwordError):
    """no letter at {address}"""


@dataclass
class Counts:
    """Of letters that fit the filters and were not resolved before."""

    found: int = 0
    resolved: int = 0
    not_ours: int = 0
    """Nobody can say where they belong: they can be discarded, not replayed."""
    by_type: Counter[str] = field(default_factory=Counter)


def letter_topics(kafka: Kafka) -> list[str]:
    return [kafka.dead_letters(topic) for topic in (kafka.messages_topic, kafka.episodes_topic)]


@asynccontextmanager
async def desk(kafka: Kafka) -> AsyncIterator["Desk"]:
    """Raises: BrokerUnavailable, TopicMissing."""
    await require_topics(kafka, *letter_topics(kafka))
    async with opened(kafka) as log:
        yield Desk(kafka, log)


class Desk:
    def __init__(self, kafka: Kafka, log: Log) -> None:
        self._kafka = kafka
        self._log = log

    async def open_letters(self, topic: str, filters: Filters) -> AsyncGenerator[DeadLetter, None]:
        """Those that fit and were neither replayed nor discarded, each partition in order. Raises: TopicStalled."""
        handled = await self._handled(topic)
        async for record in self._log.records(topic):
            if resolved_offset(record) is None:
                found = read_dead_letter(record)
                if found not in handled and filters.fit(found):
                    yield found

    async def find(self, address: str) -> DeadLetter:
        """`address`: topic/partition/offset. Raises: NoSuchLetter, TopicStalled."""
        topic, *place = address.rsplit("/", 2)
        if topic in letter_topics(self._kafka) and len(place) == 2 and all(part.isdecimal() for part in place):
            record = await self._log.record_at(topic, *map(int, place))
            if record is not None and resolved_offset(record) is None:
                return read_dead_letter(record)
        raise NoSuchLetter(address=address)

    async def count(self, topic: str, filters: Filters, action: Action) -> Counts:
        """What `resolve` would do."""
        counts = Counts()
        async for found in self.open_letters(topic, filters):
            _count(counts, found, action)
        return counts

    async def resolve(
        self, topic: str, filters: Filters, action: Action, progress: Callable[[int], None] = lambda _: None
    ) -> Counts:
        """Sends the letters' originals again, or not, and puts that on record, in one transaction for each batch.

        The producer is opened first: it ends what an earlier one left open, and fences one that still runs, so that
        what is read afterwards is all there is. `progress` is told the letters of each batch.

        Raises: ReplayOverlaps, BrokerUnavailable, TopicMissing, TopicStalled.
        """
        counts = Counts()
        async with self._producer(topic) as producer:
            batch: list[DeadLetter] = []
            async for found in self.open_letters(topic, filters):
                if _count(counts, found, action):
                    batch.append(found)
                if len(batch) == BATCH:
                    await self._commit(producer, batch, action)
                    progress(len(batch))
                    batch.clear()
            await self._commit(producer, batch, action)
        return counts

    async def _handled(self, topic: str) -> Handled:
        handled = Handled()
        async for record in self._log.records(topic):
            offset = resolved_offset(record)
            if offset is not None:
                handled.add(record.partition, offset)
        return handled

    async def _commit(self, producer: AIOKafkaProducer, letters: Sequence[DeadLetter], action: Action) -> None:
        if not letters:
            return
        sent: list[Awaitable[object]] = []
        try:
            async with producer.transaction():
                for found in letters:
                    if action == "replayed":
                        sent.append(await self._send_again(producer, found))
                    sent.append(await _put_on_record(producer, found, action))
                raise_first_error(await asyncio.gather(*sent, return_exceptions=True))
        except ProducerFenced:
            raise ReplayOverlaps(topic=letters[0].topic) from None
        except KafkaError as error:
            raise BrokerUnavailable(servers=self._kafka.bootstrap_servers, problem=type(error).__name__) from error
        finally:
            await asyncio.gather(*sent, return_exceptions=True)

    async def _send_again(self, producer: AIOKafkaProducer, found: DeadLetter) -> Awaitable[object]:
        """To the partition where it was: the producer's own way to choose one may not be ours."""
        assert found.origin is not None  # noqa: S101 – `_count` keeps the others out
        topic, partition, _ = found.origin
        target = partition if partition in await producer.partitions_for(topic) else None
        if found.key is None and found.value is None:  # which a producer may send, but aiokafka's `send` refuses
            return await _send_nothing(producer, topic, target or 0, found.headers)
        return await _sent(producer.send(topic, found.value, key=found.key, partition=target, headers=found.headers))

    @asynccontextmanager
    async def _producer(self, topic: str) -> AsyncIterator[AIOKafkaProducer]:
        options = client_options(self._kafka)
        producer = AIOKafkaProducer(
            **options, transactional_id=f"afterword-dlq-{topic}", acks="all", max_request_size=LARGE_RECORD_BYTES
        )
        try:
            await start_client(producer, options)
            yield producer
        finally:
            await producer.stop()


def _count(counts: Counts, found: DeadLetter, action: Action) -> bool:
    """Whether the action can be taken."""
    counts.found += 1
    counts.by_type[found.error_type] += 1
    if action == "replayed" and found.origin is None:
        counts.not_ours += 1
        return False
    counts.resolved += 1
    return True


def raise_first_error(results: Sequence[object]) -> None:
    """Raises: the first error among them."""
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def _put_on_record(producer: AIOKafkaProducer, found: DeadLetter, action: Action) -> Awaitable[object]:
    headers = resolution(found, action, datetime.now(UTC))
    return await _sent(producer.send(found.topic, b"", partition=found.partition, headers=headers))


async def _send_nothing(producer: AIOKafkaProducer, topic: str, partition: int, headers: Headers) -> Awaitable[object]:
    batch = producer.create_batch()
    batch.append(key=None, value=None, timestamp=None, headers=headers)
    return await _sent(producer.send_batch(batch, topic, partition=partition))


async def _sent(sending: Awaitable[Awaitable[object]]) -> Awaitable[object]:
    """The delivery's future, which untyped aiokafka hands out."""
    return await sending
