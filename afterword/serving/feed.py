"""One consumer serves all clients of the event stream: it tails the topics and hands each event to its clients.

A client that resumes first gets what it missed, up to the shared consumer's position when it connected; from there on
it has a queue. It catches up in turns of a limited number of records, and each key has one turn at a time. A client
whose queue is full is disconnected, and resumes from the last position it was sent.

Deleted content is not sent: each summary is compared with the stored one.
"""

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from weakref import WeakValueDictionary

import orjson
import structlog
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from afterword.consumers.subscriber import decode_revision
from afterword.reading.context import ANYONE, Owner
from afterword.schemas import (
    EpisodeAmended,
    EpisodeClosed,
    EpisodeRedo,
    InvalidRecord,
    SummaryCreated,
    SummaryDeleted,
    decode_closed,
)
from afterword.schemas.episodes import EPISODE_CLOSED
from afterword.schemas.headers import FOR_ENDPOINT, EventOwner, header, owner_in
from afterword.schemas.summaries import SUMMARY_CREATED, SUMMARY_DELETED
from afterword.streams.errors import AfterwordError, BrokerUnavailable, ConfigurationError, StoreUnavailable
from afterword.streams.kafka.clients import require_topics
from afterword.streams.kafka.log_reader import open_log, reached
from afterword.streams.settings import Kafka
from afterword.streams.stores.episodes import EpisodeVersion, Versions
from afterword.streams.telemetry import Metrics

QUEUED_EVENTS = 256
"""A client with more queued events than this is disconnected."""
KNOWN_CONVERSATIONS = 10_000
CATCHING_UP = 4
"""Concurrent catch-up turns, each with its own consumer. A key has at most one of them."""
RECORDS_A_TURN = 5_000
BYTES_A_TURN = 4 * 1024 * 1024
"""A turn ends once it has collected this many bytes of events."""
RECORDS_TOGETHER = 500
POLL_MILLISECONDS = 500
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 10.0
QUIET_SECONDS = 3.0
"""After this long without records, Kafka is asked whether it is still there."""
ANSWER_SECONDS = 3.0

CLOSED_FIELDS = {
    *("episode_id", "revision", "conversation_id", "user_id", "agent_id", "tenant_id", "ordinal", "close_reason"),
    *("started_at", "ended_at", "closed_at"),
}
"""An `episode.closed` is sent with these fields and the ids of its messages, but without their contents."""
Streamed = SummaryCreated | SummaryDeleted | EpisodeClosed

log = structlog.get_logger(__name__)
MOST_CHARACTERS = 16_000
_OFFSETS = re.compile(r"(?:[0-9]{1,18}(?:,[0-9]{1,18})*)?")


@dataclass(frozen=True)
class Published:
    """An event as it is sent, shared by all clients."""

    position: str
    """The event's id in the stream."""
    kind: str
    event: Streamed
    """An episode has no messages here."""
    data: str
    """The event's JSON, on one line."""
    source: TopicPartition
    offset: int

    @property
    def at(self) -> datetime:
        if isinstance(self.event, SummaryCreated):
            return self.event.created_at
        return self.event.deleted_at if isinstance(self.event, SummaryDeleted) else self.event.closed_at

    def is_still_there(self, stored: EpisodeVersion | None) -> bool:
        """Return whether the store still has what the event says and nothing newer. A deletion is always sent."""
        if self.kind == SUMMARY_DELETED or stored is None:
            return True
        if self.kind == EPISODE_CLOSED:  # this event has no texts
            return stored.ended is None
        return not stored.outdates(self.event.revision)


@dataclass(frozen=True)
class Reached:
    """A position up to which a client that is catching up has received everything."""

    position: str


@dataclass(frozen=True)
class StreamFilter:
    """A client's filter. `owner` is the key's; a named conversation was already checked to belong to them."""

    owner: Owner
    kinds: frozenset[str]
    conversation_id: str | None = None
    user_id: str | None = None
    key_id: str = ""
    """Name of the key; a key has one catch-up turn at a time."""

    def may_have(self, kind: str, conversation_id: str, owner: EventOwner | None) -> bool:
        """Return whether an event is for this client. A value of None is unknown and fits every client."""
        if kind not in self.kinds or self.conversation_id not in (None, conversation_id):
            return False
        if owner is None:
            return True
        if self.owner.tenant_id not in (ANYONE, owner.tenant_id):
            return False
        # a named conversation was already checked to be the owner's
        is_theirs = self.conversation_id is not None or self.owner.user_id in (ANYONE, owner.user_id)
        return owner.user_id is None or (is_theirs and self.user_id in (None, owner.user_id))


@dataclass(eq=False)
class StreamClient:
    """A client's filter and its queued events. None in the queue marks the end."""

    wanted: StreamFilter
    seen: Mapping[TopicPartition, int]
    """The client has received everything before these offsets."""
    queue: asyncio.Queue[Published | None] = field(default_factory=lambda: asyncio.Queue(QUEUED_EVENTS + 1))

    def offer(self, event: Published) -> bool:
        """Queue an event. If the queue is full, replace its content with the end mark and return False."""
        if self.queue.qsize() < QUEUED_EVENTS:
            self.queue.put_nowait(event)
            return True
        while not self.queue.empty():
            self.queue.get_nowait()
        self.queue.put_nowait(None)
        return False


class Turns:
    """Limits concurrent catch-up turns to one per key and CATCHING_UP in total."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(CATCHING_UP)
        self._of_key: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, key_id: str) -> AsyncIterator[None]:
        mine = self._of_key.setdefault(key_id, asyncio.Lock())
        async with mine, self._all:
            yield


class Feed:
    """The events of `summary.created`, `summary.deleted` and `episode.closed`, from now on or from a position."""

    def __init__(self, kafka: Kafka, metrics: Metrics, versions: Versions) -> None:
        self._kafka = kafka
        self._metrics = metrics
        self._versions = versions
        self.topics = kafka.summaries_topic, kafka.deletions_topic, kafka.episodes_topic
        self._kinds = dict(zip(self.topics, (SUMMARY_CREATED, SUMMARY_DELETED, EPISODE_CLOSED), strict=True))
        self._offsets: dict[TopicPartition, int] = {}
        self._clients: set[StreamClient] = set()
        self._users: OrderedDict[str, str] = OrderedDict()
        self._turns = Turns()
        self._interrupted = False

    async def run(self) -> None:
        """Read forever. While Kafka is unavailable, clients wait."""
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
        """Whether the feed is running: it has started, and Kafka answered the last time it was asked."""
        return bool(self._offsets) and not self._interrupted

    def require_running(self) -> None:
        """Check that the feed has started. Raises: BrokerUnavailable."""
        if not self._offsets:
            raise BrokerUnavailable(servers=self._kafka.bootstrap_servers, problem="the topics were not read yet")

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """Everything before these offsets has been handed out."""
        return dict(self._offsets)

    async def events(
        self, wanted: StreamFilter, since: Mapping[TopicPartition, int]
    ) -> AsyncGenerator[Published | Reached, None]:
        """Yield events forever, or until the client is disconnected.

        `since` holds the offsets before which the client has everything. Raises: BrokerUnavailable, StoreUnavailable,
        KafkaError while it catches up.
        """
        here = self.offsets
        client = StreamClient(wanted, since)
        self._clients.add(client)
        self._metrics.event_clients.set(len(self._clients))
        try:
            at = self._beginning(wanted, since, here)
            while _behind(at, here):
                for event in await self._missed(wanted, at, here):
                    yield event
                yield Reached(position_id(self.topics, at))
            while (queued := await client.queue.get()) is not None:
                yield queued
        finally:
            self._clients.discard(client)
            self._metrics.event_clients.set(len(self._clients))

    async def recent(self, wanted: StreamFilter, records: int) -> list[Published]:
        """List the events among the last records of each partition. Raises: BrokerUnavailable, KafkaError,
        StoreUnavailable.
        """
        here = self.offsets
        at = self._beginning(wanted, {tp: max(0, end - records) for tp, end in here.items()}, here)
        return await self._missed(wanted, at, here)

    async def _read(self) -> None:
        """Hand out new records forever. Raises: BrokerUnavailable, TopicMissing, KafkaError."""
        await require_topics(self._kafka, *self.topics)  # a missing topic would never get partitions
        async with (
            open_log(self._kafka) as reading,
            reading.reader(*self.topics) as consumer,
        ):
            if not self._offsets:
                await consumer.seek_to_end()
                self._offsets = {tp: await consumer.position(tp) for tp in consumer.assignment()}
            for tp in consumer.assignment():
                consumer.seek(tp, self._offsets.setdefault(tp, 0))
            self._interrupted, heard_at = False, time.monotonic()
            while True:
                found = await consumer.getmany(timeout_ms=POLL_MILLISECONDS, max_records=RECORDS_TOGETHER)
                for records in found.values():
                    await self.hand_out(records)
                if found:
                    self._interrupted, heard_at = False, time.monotonic()
                elif time.monotonic() - heard_at >= QUIET_SECONDS:
                    # aiokafka waits silently for unavailable brokers, and recovers without our help
                    try:
                        async with asyncio.timeout(ANSWER_SECONDS):
                            await consumer.topics()
                        self._interrupted = False
                    except (TimeoutError, KafkaError):
                        self._interrupted = True
                    heard_at = time.monotonic()

    async def hand_out(self, records: Sequence[ConsumerRecord]) -> None:
        """Queue the events in a partition's next records for the clients they are meant for.

        A client that connects meanwhile reads these records itself, because the shared offsets are already past them.
        """
        clients, at = tuple(self._clients), self.offsets
        self._offsets[TopicPartition(records[-1].topic, records[-1].partition)] = records[-1].offset + 1
        events = await self._published(records, at, [client.wanted for client in clients])
        while True:
            try:
                events = await self._still_there(events)
                break
            except StoreUnavailable as error:
                self._interrupted = True
                log.warning("feed_interrupted", stage="serve", error_type=error.error_type)
                await asyncio.sleep(FIRST_WAIT_SECONDS)
        for event in events:
            await asyncio.sleep(0)  # let others use the event loop
            for client in clients:
                if client not in self._clients or event.offset < client.seen.get(event.source, 0):
                    continue
                if self._is_for(client.wanted, event) and not client.offer(event):
                    self._clients.discard(client)

    async def _published(
        self, records: Iterable[ConsumerRecord], at: dict[TopicPartition, int], filters: Sequence[StreamFilter]
    ) -> list[Published]:
        """Decode the records that one of the filters admits, advancing `at` past each record."""
        found: list[Published] = []
        for record in records:
            await asyncio.sleep(0)  # let others use the event loop
            at[TopicPartition(record.topic, record.partition)] = record.offset + 1
            named = self._kinds[record.topic], (record.key or b"").decode(errors="replace"), owner_in(record.headers)
            if any(wanted.may_have(*named) for wanted in filters) and (event := self._decoded(record, at)):
                found.append(event)
        return found

    async def _still_there(self, events: Sequence[Published]) -> list[Published]:
        if not events:
            return []
        versions = await self._versions(list({one.event.episode_id for one in events}))
        return [one for one in events if one.is_still_there(versions.get(one.event.episode_id))]

    def _decoded(self, record: ConsumerRecord, at: Mapping[TopicPartition, int]) -> Published | None:
        if header(record.headers, FOR_ENDPOINT) is not None:
            return None
        found: Streamed | EpisodeAmended | EpisodeRedo | None
        try:
            if record.topic == self._kafka.episodes_topic:
                found = decode_closed(record.key, record.value, record.headers)
            else:
                found = decode_revision(record)
        except InvalidRecord as error:
            log.warning("record_skipped", stage="serve", error_type=error.error_type, offset=record.offset)
            return None
        match found:
            case EpisodeClosed():
                ids = [message.id for message in found.messages]
                data = orjson.dumps(
                    {**found.model_dump(mode="json", include=CLOSED_FIELDS), "message_ids": ids}
                ).decode()
                found = found.model_copy(update={"messages": (), "overlap": ()})
            case SummaryCreated() | SummaryDeleted():
                data = found.model_dump_json()
            case _:
                return None
        if not isinstance(found, SummaryDeleted):
            self._users[found.conversation_id] = found.user_id
            self._users.move_to_end(found.conversation_id)
            if len(self._users) > KNOWN_CONVERSATIONS:
                self._users.popitem(last=False)
        source = TopicPartition(record.topic, record.partition)
        return Published(position_id(self.topics, at), self._kinds[record.topic], found, data, source, record.offset)

    def _is_for(self, wanted: StreamFilter, published: Published) -> bool:
        event = published.event
        # a deletion names no user
        user_id = self._users.get(event.conversation_id, "") if isinstance(event, SummaryDeleted) else event.user_id
        return wanted.may_have(published.kind, event.conversation_id, EventOwner(event.tenant_id, user_id))

    def _beginning(
        self, wanted: StreamFilter, since: Mapping[TopicPartition, int], here: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return where a client starts: at the end for topics it wants nothing from."""
        return {tp: since.get(tp, 0) if self._kinds[tp.topic] in wanted.kinds else end for tp, end in here.items()}

    async def _missed(
        self, wanted: StreamFilter, at: dict[TopicPartition, int], here: Mapping[TopicPartition, int]
    ) -> list[Published]:
        """Read one turn's records between two positions, advancing `at`.

        Raises: BrokerUnavailable, KafkaError, StoreUnavailable.
        """
        found: list[Published] = []
        left, size = RECORDS_A_TURN, 0
        async with (
            self._turns.turn(wanted.key_id),
            open_log(self._kafka) as reading,
            reading.reader(*self.topics) as consumer,
        ):
            behind = _behind(at, here)
            first = await consumer.beginning_offsets(list(behind))
            consumer.assign(list(behind))
            for tp in behind:
                at[tp] = max(first[tp], at[tp])
                consumer.seek(tp, at[tp])
            while left > 0 and size < BYTES_A_TURN and not await reached(consumer, behind):
                fetched = await consumer.getmany(timeout_ms=POLL_MILLISECONDS, max_records=min(left, RECORDS_TOGETHER))
                for tp, records in fetched.items():
                    left -= len(records)
                    asked = [record for record in records if record.offset < behind[tp]]
                    events = await self._published(asked, at, [wanted])
                    found += [event for event in events if self._is_for(wanted, event)]
                    size = sum(len(event.data) for event in found)
                for tp, end in behind.items():
                    at[tp] = min(end, await consumer.position(tp))
        return await self._still_there(found)


def _behind(at: Mapping[TopicPartition, int], here: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {tp: end for tp, end in here.items() if at[tp] < end}


class PositionInvalid(AfterwordError, ValueError):
    """Last-Event-ID is not an id of one of this server's events"""


def position_id(topics: Sequence[str], offsets: Mapping[TopicPartition, int]) -> str:
    """Write the offsets of all partitions: `7,9;3,0;12,5` for three topics with two partitions each.

    A missing partition has the offset 0.
    """
    counts = [max((tp.partition + 1 for tp in offsets if tp.topic == topic), default=0) for topic in topics]
    return ";".join(
        ",".join(str(offsets.get(TopicPartition(topic, number), 0)) for number in range(count))
        for topic, count in zip(topics, counts, strict=True)
    )


def offsets_of(topics: Sequence[str], position: str) -> dict[TopicPartition, int]:
    """Read a `position_id`. Raises: PositionInvalid."""
    listed = position.split(";")
    if len(position) > MOST_CHARACTERS or len(listed) != len(topics) or not all(map(_OFFSETS.fullmatch, listed)):
        raise PositionInvalid
    return {
        TopicPartition(topic, number): int(offset)
        for topic, offsets in zip(topics, listed, strict=True)
        for number, offset in enumerate(filter(None, offsets.split(",")))
    }
