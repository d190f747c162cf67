"""One consumer for all clients of the event stream: it reads the topics' ends and hands each event to whom it is for.

A client that comes back is first given what it missed, by a consumer of its own, up to where the shared one was when it
came; from there on it has a queue. One whose queue is full, or that reads slowly what it missed, is let go: it comes
back with the id of its last event.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from afterword.consumers.subscriber import decode_revision
from afterword.context import Owner
from afterword.schemas import EpisodeClosed, InvalidRecord, SummaryCreated, SummaryDeleted, decode_closed
from afterword.schemas.base import Model, PartyId, Time
from afterword.schemas.episodes import EPISODE_CLOSED, CloseReason
from afterword.schemas.headers import FOR_ENDPOINT, header
from afterword.schemas.summaries import SUMMARY_CREATED, SUMMARY_DELETED
from afterword.serving.positions import position_id
from afterword.streams.errors import BrokerUnavailable, ConfigurationError
from afterword.streams.kafka import require_topics
from afterword.streams.log_reader import open_log, reached
from afterword.streams.settings import Kafka
from afterword.streams.telemetry import Metrics

QUEUED_EVENTS = 256
"""Events that wait for a client; with more it is let go."""
KNOWN_CONVERSATIONS = 10_000
CATCHING_UP = 4
"""Clients that are given what they missed at a time: each has a consumer of its own."""
UNREAD_SECONDS = 30.0
"""Time that such a client may take in all to read what it is given; then another has its turn."""
POLL_MILLISECONDS = 500
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 10.0
QUIET_SECONDS = 3.0
"""Time without records after which Kafka is asked whether it is there."""
ANSWER_SECONDS = 3.0

Streamed = SummaryCreated | SummaryDeleted | EpisodeClosed

log = structlog.get_logger(__name__)


class EpisodeClosedEvent(Model):
    """An episode that was closed, without the contents of its messages."""

    episode_id: str
    """Id of the episode."""
    revision: int
    """Revision of the episode."""
    conversation_id: str
    """Id of the conversation."""
    user_id: PartyId
    """User of the episode."""
    agent_id: PartyId | None
    """Agent of the episode, if episodes are kept per agent."""
    tenant_id: PartyId | None
    """Tenant of the conversation."""
    ordinal: int
    """Position of the episode in its conversation."""
    close_reason: CloseReason
    """Reason why it was closed."""
    message_ids: tuple[str, ...]
    """Ids of the core messages, in order."""
    started_at: Time
    """`sent_at` of the first core message."""
    ended_at: Time
    """`sent_at` of the last core message."""
    closed_at: Time
    """Time of closing the episode."""

    @classmethod
    def of(cls, episode: EpisodeClosed) -> "EpisodeClosedEvent":
        ids = tuple(message.id for message in episode.messages)
        copied = {name: getattr(episode, name) for name in cls.model_fields if name != "message_ids"}
        return cls(**copied, message_ids=ids)


@dataclass(frozen=True)
class Published:
    """An event as clients get it, shared by all of them."""

    position: str
    """Its id in the stream."""
    kind: str
    data: str
    """JSON in one line."""
    source: TopicPartition
    offset: int
    conversation_id: str
    tenant_id: str | None
    user_id: str | None
    """None for a deletion: its event names no user."""


@dataclass(frozen=True)
class StreamFilter:
    """Filter of a client. `owner`: of its key; a named conversation was checked to be the owner's."""

    owner: Owner
    kinds: frozenset[str]
    conversation_id: str | None = None
    user_id: str | None = None


@dataclass(eq=False)
class StreamClient:
    """A client's filter, and the events that wait for it. None in the queue is the end."""

    wanted: StreamFilter
    seen: Mapping[TopicPartition, int]
    """Offsets before which it has everything."""
    queue: asyncio.Queue[Published | None] = field(default_factory=lambda: asyncio.Queue(QUEUED_EVENTS + 1))

    def offer(self, event: Published) -> bool:
        """Queue an event; False, with only the end in the queue, if it is full."""
        if self.queue.qsize() < QUEUED_EVENTS:
            self.queue.put_nowait(event)
            return True
        while not self.queue.empty():
            self.queue.get_nowait()
        self.queue.put_nowait(None)
        return False


class Feed:
    """Events of `summary.created`, `summary.deleted` and `episode.closed`, from now on or from a position on."""

    def __init__(self, kafka: Kafka, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._kafka = kafka
        self._metrics = metrics
        self._clock = clock
        self.topics = kafka.summaries_topic, kafka.deletions_topic, kafka.episodes_topic
        self._offsets: dict[TopicPartition, int] = {}
        self._clients: set[StreamClient] = set()
        self._users: OrderedDict[str, str] = OrderedDict()
        self._catching_up = asyncio.Semaphore(CATCHING_UP)
        self._interrupted = False

    async def run(self) -> None:
        """Read for ever; while Kafka is away, clients wait."""
        wait = FIRST_WAIT_SECONDS
        while True:
            try:
                await self._read()
            except (BrokerUnavailable, ConfigurationError, KafkaError) as error:
                self._interrupted = True
                log.warning("feed_interrupted", stage="serve", error_type=type(error).__name__)
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    @property
    def running(self) -> bool:
        """Tell whether it reads: it has begun, and Kafka answered when it was last asked."""
        return bool(self._offsets) and not self._interrupted

    def require_running(self) -> None:
        """Raises: BrokerUnavailable before the first read."""
        if not self._offsets:
            raise BrokerUnavailable(servers=self._kafka.bootstrap_servers, problem="the topics were not read yet")

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """Offsets before which everything was handed out."""
        return dict(self._offsets)

    async def events(
        self, wanted: StreamFilter, since: Mapping[TopicPartition, int]
    ) -> AsyncGenerator[Published, None]:
        """Yield events for ever, or until the client is too slow. `since`: offsets before which it has everything."""
        here = self.offsets
        client = StreamClient(wanted, since)
        self._clients.add(client)
        self._metrics.event_clients.set(len(self._clients))
        try:
            unread_seconds = 0.0
            async with aclosing(self._missed(wanted, since, here)) as missed:
                async for event in missed:
                    given_at = self._clock()
                    yield event
                    unread_seconds += self._clock() - given_at
                    if unread_seconds > UNREAD_SECONDS:
                        self._metrics.event_clients_dropped.inc()
                        return
            while (queued := await client.queue.get()) is not None:
                yield queued
        finally:
            self._clients.discard(client)
            self._metrics.event_clients.set(len(self._clients))

    async def recent(self, wanted: StreamFilter, records: int) -> list[Published]:
        """List the events among the last records of each partition. Raises: BrokerUnavailable, KafkaError."""
        here = self.offsets
        since = {tp: max(0, end - records) for tp, end in here.items()}
        async with aclosing(self._missed(wanted, since, here)) as found:
            return [event async for event in found]

    async def _read(self) -> None:
        """Hand out what comes, for ever. Raises: BrokerUnavailable, TopicMissing, KafkaError."""
        await require_topics(self._kafka, *self.topics)  # one that is missing would have no partitions, for ever
        async with (
            open_log(self._kafka) as reading,
            reading.reader(*self.topics, isolation_level="read_committed") as consumer,
        ):
            await self._begin(consumer)
            self._interrupted, heard_at = False, time.monotonic()
            while True:
                found = await consumer.getmany(timeout_ms=POLL_MILLISECONDS)
                for records in found.values():
                    for record in records:
                        self._take(record)
                    await asyncio.sleep(0)  # requests go on while many records come
                if found or time.monotonic() - heard_at >= QUIET_SECONDS:
                    self._interrupted = not (found or await _answers(consumer))
                    heard_at = time.monotonic()

    async def _begin(self, consumer: AIOKafkaConsumer) -> None:
        """Go on where the last consumer was; the first one begins at the ends."""
        if not self._offsets:
            await consumer.seek_to_end()
            self._offsets = {tp: await consumer.position(tp) for tp in consumer.assignment()}
        for tp in consumer.assignment():
            consumer.seek(tp, self._offsets.setdefault(tp, 0))

    def _take(self, record: ConsumerRecord) -> None:
        self._offsets[TopicPartition(record.topic, record.partition)] = record.offset + 1
        if not self._clients:
            return
        event = self._published(record, self._offsets)
        if event is None:
            return
        for client in tuple(self._clients):
            fresh = event.offset >= client.seen.get(event.source, 0)
            if fresh and self._is_for(client.wanted, event) and not client.offer(event):
                self._clients.discard(client)
                self._metrics.event_clients_dropped.inc()

    def _published(self, record: ConsumerRecord, offsets: Mapping[TopicPartition, int]) -> Published | None:
        try:
            event = self._decoded(record)
        except InvalidRecord as error:
            log.warning("record_skipped", stage="serve", error_type=error.error_type, offset=record.offset)
            return None
        if event is None:
            return None
        user_id = None if isinstance(event, SummaryDeleted) else event.user_id
        if user_id is not None:
            self._users[event.conversation_id] = user_id
            self._users.move_to_end(event.conversation_id)
            if len(self._users) > KNOWN_CONVERSATIONS:
                self._users.popitem(last=False)
        shown = EpisodeClosedEvent.of(event) if isinstance(event, EpisodeClosed) else event
        return Published(
            position=position_id(self.topics, offsets),
            kind=KINDS[type(event)],
            data=shown.model_dump_json(),
            source=TopicPartition(record.topic, record.partition),
            offset=record.offset,
            conversation_id=event.conversation_id,
            tenant_id=event.tenant_id,
            user_id=user_id,
        )

    def _decoded(self, record: ConsumerRecord) -> Streamed | None:
        """Decode a record; None for one that is not streamed. Raises: InvalidRecord."""
        if header(record.headers, FOR_ENDPOINT) is not None:
            return None
        if record.topic != self._kafka.episodes_topic:
            return decode_revision(record)
        event = decode_closed(record.key, record.value, record.headers)
        return event if isinstance(event, EpisodeClosed) else None

    def _is_for(self, wanted: StreamFilter, event: Published) -> bool:
        if event.kind not in wanted.kinds or wanted.conversation_id not in (None, event.conversation_id):
            return False
        user_id = self._users.get(event.conversation_id, "") if event.user_id is None else event.user_id
        owner = wanted.owner
        if wanted.conversation_id is not None:  # that was checked to be theirs
            owner = Owner(tenant_id=owner.tenant_id)
        return owner.has(user_id, event.tenant_id) and wanted.user_id in (None, user_id)

    async def _missed(
        self, wanted: StreamFilter, since: Mapping[TopicPartition, int], here: Mapping[TopicPartition, int]
    ) -> AsyncGenerator[Published, None]:
        """Yield what there is between two positions. Raises: BrokerUnavailable, KafkaError."""
        behind = {tp: end for tp, end in here.items() if since.get(tp, 0) < end}
        if not behind:
            return
        at = {tp: since.get(tp, 0) for tp in here}
        async with (
            self._catching_up,
            open_log(self._kafka) as reading,
            reading.reader(*self.topics, isolation_level="read_committed") as consumer,
        ):
            first = await consumer.beginning_offsets(list(behind))
            consumer.assign(list(behind))
            for tp in behind:
                consumer.seek(tp, max(first[tp], at[tp]))
            while not await reached(consumer, behind):
                for tp, records in (await consumer.getmany(timeout_ms=POLL_MILLISECONDS)).items():
                    for record in records:
                        if record.offset >= behind[tp]:
                            break
                        at[tp] = record.offset + 1
                        event = self._published(record, at)
                        if event is not None and self._is_for(wanted, event):
                            yield event


async def _answers(consumer: AIOKafkaConsumer) -> bool:
    """Ask Kafka for what it has: a consumer waits in silence for brokers that are away, and goes on by itself."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await consumer.topics()
    except (TimeoutError, KafkaError):
        return False
    return True


KINDS: dict[type[Streamed], str] = {
    SummaryCreated: SUMMARY_CREATED,
    SummaryDeleted: SUMMARY_DELETED,
    EpisodeClosed: EPISODE_CLOSED,
}
