"""The events of the topics, for clients that follow them.

One consumer serves all clients: it tails the topics and gives each client the new events. A client that resumes first
gets the events that it missed, up to the shared consumer's position when it connected. It catches up in turns of a
limited number of records. A client that leaves more than MOST_UNREAD events unread is disconnected, and resumes from
the last position it was sent.

Deleted content is not sent: each summary is compared with the stored one, and again if it is sent late.
"""

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Literal, NamedTuple

import orjson
import structlog
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError
from limits.aio.storage import MemoryStorage
from sse_starlette import ServerSentEvent

from afterword.consumers.subscriber import decode_revision
from afterword.schemas import (
    EpisodeAmended,
    EpisodeClosed,
    EpisodeRedo,
    InvalidRecord,
    SummaryCreated,
    SummaryDeleted,
    decode_closed,
)
from afterword.schemas.base import ANYONE, Owner
from afterword.schemas.episodes import EPISODE_CLOSED
from afterword.schemas.records import FOR_ENDPOINT, EventOwner, header, owner_in
from afterword.schemas.summaries import SUMMARY_CREATED, SUMMARY_DELETED
from afterword.serving.problems import PositionInvalid
from afterword.streams.errors import BrokerUnavailable, ConfigurationError, StoreUnavailable
from afterword.streams.kafka.clients import require_topics
from afterword.streams.kafka.log_reader import batches, open_log
from afterword.streams.settings import Kafka
from afterword.streams.stores.episodes import DeletedEpisode, Episode, Lookup, is_outdated
from afterword.streams.tasks import FairTurns, Paced, in_parts
from afterword.streams.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)
MOST_UNREAD = 2_000
"""A client that has more unread events than this is disconnected."""
EVENTS_PER_STEP = 10
"""After filtering this many events for a client, others may use the event loop."""
TICK_SECONDS = 1.0
"""Clients get a batch of events, possibly an empty one, at least this often."""
COMPARED_TOGETHER = 10
"""Events that are compared with the store in one step of the event loop."""
KNOWN_CONVERSATIONS = 10_000
CATCHING_UP = 4
"""Concurrent catch-up turns, each with its own consumer."""
CATCHING_UP_PER_KEY = 2
RECORDS_PER_MINUTE = 100_000
"""Number of records that a key's clients may read while they catch up."""
RECORDS_PER_TURN = 1_000
FETCHED_BYTES = 64 * 1024
"""Size of a fetched part of a partition, which is read in one step of the event loop."""
BYTES_PER_TURN = 1024 * 1024
"""A turn ends once it has collected this many bytes of events."""
POLL_MILLISECONDS = 500
RECORDS_TOGETHER = 20
"""Records that are decoded in one step of the event loop."""
WAIT_SECONDS = 1.0
"""Pause after an interruption."""
QUIET_SECONDS = 3.0
"""After this long without records, Kafka is asked whether it is still there."""
ANSWER_SECONDS = 3.0
CLOSED_FIELDS = {
    *("episode_id", "revision", "conversation_id", "user_id", "agent_id", "tenant_id", "ordinal", "close_reason"),
    *("started_at", "ended_at", "closed_at"),
}
"""An `episode.closed` is sent with these fields and the ids of its messages, but without their contents."""
Streamed = SummaryCreated | SummaryDeleted | EpisodeClosed
Kind = Literal["summary.created", "summary.deleted", "episode.closed"]


ALL: tuple[Kind, ...] = ("summary.created", "summary.deleted", "episode.closed")


LONGEST_POSITION = 16_000
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
    read_at: float
    """When it was read from Kafka, on the monotonic clock."""

    @cached_property
    def line(self) -> bytes:
        """The event as it is sent, made once for all clients."""
        return ServerSentEvent(self.data, event=self.kind, id=self.position).encode()

    @property
    def at(self) -> datetime:
        if isinstance(self.event, SummaryCreated):
            return self.event.created_at
        return self.event.deleted_at if isinstance(self.event, SummaryDeleted) else self.event.closed_at

    def is_still_there(self, stored: Episode | None) -> bool:
        """Return whether the store still has what the event says and nothing newer. A deletion is always sent."""
        if isinstance(self.event, SummaryCreated):
            return not is_outdated(self.event, stored)
        return self.kind == SUMMARY_DELETED or not isinstance(stored, DeletedEpisode)  # `episode.closed` has no texts


class Batch(NamedTuple):
    """The next events for a client."""

    events: Sequence[Published]
    position: str | None = None
    """While the client catches up: the position up to which it has received everything with these events."""


@dataclass(frozen=True)
class StreamFilter:
    """A client's filter. A named conversation was already checked to belong to the owner."""

    owner: Owner
    kinds: frozenset[str]
    conversation_id: str | None = None
    key_id: str = ""
    """Name of the key that the client uses."""

    def may_have(self, kind: str, conversation_id: str, owner: EventOwner | None) -> bool:
        """Return whether an event is for this client. None is an unknown value, which matches every client."""
        if kind not in self.kinds or self.conversation_id not in (None, conversation_id):
            return False
        if owner is None:
            return True
        if self.owner.tenant_id not in (ANYONE, owner.tenant_id):
            return False
        is_theirs = owner.user_id is None or self.owner.user_id in (ANYONE, owner.user_id)
        return is_theirs or self.conversation_id is not None


class Unread:
    """The events that a client has yet to look at."""

    def __init__(self) -> None:
        self._events: list[Published] = []
        self._news = asyncio.Event()
        self.has_overflowed = False

    def add(self, events: Sequence[Published]) -> None:
        self._events.extend(events)
        if len(self._events) > MOST_UNREAD:
            self.has_overflowed = True
            self._events.clear()
        self._news.set()

    def take(self) -> Sequence[Published]:
        taken, self._events = self._events, []
        self._news.clear()
        return taken

    async def wait(self) -> None:
        """Wait for events, at most for TICK_SECONDS."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TICK_SECONDS):
                await self._news.wait()


class Feed:
    """The events of `summary.created`, `summary.deleted` and `episode.closed`, from now on or from a position."""

    def __init__(self, kafka: Kafka, metrics: Metrics, lookup: Lookup) -> None:
        self._kafka = kafka
        self._metrics = metrics
        self._lookup = lookup
        self.topics = kafka.summaries_topic, kafka.deletions_topic, kafka.episodes_topic
        self._kinds = dict(zip(self.topics, (SUMMARY_CREATED, SUMMARY_DELETED, EPISODE_CLOSED), strict=True))
        self._offsets: dict[TopicPartition, int] = {}
        self._clients: set[Unread] = set()
        self._users: OrderedDict[str, str] = OrderedDict()
        self._turns = FairTurns(CATCHING_UP_PER_KEY, CATCHING_UP)
        self._caught_up = MemoryStorage()
        """Numbers of records that each key's clients have read this minute while they catch up."""
        self._interrupted = False

    async def run(self) -> None:
        """Read forever. While Kafka or the store is unavailable, clients wait."""
        while True:
            try:
                await self._read()
            except (BrokerUnavailable, ConfigurationError, KafkaError, StoreUnavailable) as error:
                if not self._interrupted:
                    log.warning("feed_interrupted", stage="serve", error_type=type(error).__name__)
                self._interrupted = True
                await asyncio.sleep(WAIT_SECONDS)

    @property
    def running(self) -> bool:
        """Whether the feed is running: it has started, and Kafka answered the last time it was asked."""
        return bool(self._offsets) and not self._interrupted

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """Everything before these offsets has been handed out; empty until the feed has started."""
        return dict(self._offsets)

    async def follow(self, wanted: StreamFilter, since: Mapping[TopicPartition, int]) -> AsyncGenerator[Batch, None]:
        """Yield a batch for each catch-up turn, which may take long, and then at least every TICK_SECONDS.

        This ends if the client is too far behind. `since` holds the offsets before which the client has everything.
        Raises: BrokerUnavailable, StoreUnavailable, KafkaError, TopicStalled.
        """
        here, unread = self.offsets, Unread()
        self._clients.add(unread)
        self._metrics.event_clients.set(len(self._clients))
        try:
            # topics from which the client wants nothing count as read
            at = {tp: since.get(tp, 0) if self._kinds[tp.topic] in wanted.kinds else end for tp, end in here.items()}
            while _behind(at, here):
                yield Batch(await self._missed(wanted, at, here), position_id(self.topics, at))
            while not unread.has_overflowed:
                yield Batch(await self._filtered(unread.take(), wanted, since))
                await unread.wait()
        finally:
            self._clients.discard(unread)
            self._metrics.event_clients.set(len(self._clients))

    async def _filtered(
        self, events: Sequence[Published], wanted: StreamFilter, since: Mapping[TopicPartition, int]
    ) -> list[Published]:
        found: list[Published] = []
        for number, event in enumerate(events):
            if number % EVENTS_PER_STEP == 0:
                await asyncio.sleep(0)  # let others use the event loop
            if event.offset >= since.get(event.source, 0) and self._is_for(wanted, event):
                found.append(event)
        return found

    async def _read(self) -> None:
        """Hand out new records forever. Raises: BrokerUnavailable, TopicMissing, KafkaError, StoreUnavailable."""
        await require_topics(self._kafka, *self.topics)  # a missing topic would never get partitions
        async with open_log(self._kafka) as reading, reading.reader(*self.topics) as consumer:
            if not self._offsets:
                await consumer.seek_to_end()
                self._offsets = {tp: await consumer.position(tp) for tp in consumer.assignment()}
            for tp in consumer.assignment():
                consumer.seek(tp, self._offsets.setdefault(tp, 0))
            heard_at = float("-inf")  # so that Kafka is asked at once if there are no records
            while True:
                fetched = await consumer.getmany(timeout_ms=POLL_MILLISECONDS, max_records=RECORDS_TOGETHER)
                for records in fetched.values():
                    await self.hand_out(records)
                if fetched:
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
        """Hand a partition's next records out to the clients.

        If there are none, only the offset advances: a client that connects later starts there or catches up. Raises:
        StoreUnavailable; the records must then be handed out again.
        """
        at, last = self.offsets, records[-1]
        events = [event for record in records if self._clients and (event := self._published(record, at))]
        events = await self.still_there(events)
        at[TopicPartition(last.topic, last.partition)] = last.offset + 1
        if events:
            for unread in self._clients:
                unread.add(events)
        self._offsets = at

    async def still_there(self, events: Sequence[Published]) -> list[Published]:
        """Leave out events whose texts were deleted or replaced. Raises: StoreUnavailable."""
        present: list[Published] = []
        for some in in_parts(events, COMPARED_TOGETHER):
            stored = await self._lookup(list({event.event.episode_id for event in some}))
            present += [event for event in some if event.is_still_there(stored.get(event.event.episode_id))]
        return present

    def _published(
        self, record: ConsumerRecord, at: dict[TopicPartition, int], wanted: StreamFilter | None = None
    ) -> Published | None:
        """Decode a record, unless it cannot be `wanted`, and advance `at` past it."""
        source, kind = TopicPartition(record.topic, record.partition), self._kinds[record.topic]
        at[source] = record.offset + 1
        named = kind, (record.key or b"").decode(errors="replace"), owner_in(record.headers)
        if header(record.headers, FOR_ENDPOINT) is not None or not (wanted is None or wanted.may_have(*named)):
            return None
        decoded: Streamed | EpisodeAmended | EpisodeRedo | None
        try:
            if record.topic == self._kafka.episodes_topic:
                decoded = decode_closed(record.key, record.value, record.headers)
            else:
                decoded = decode_revision(record)
        except InvalidRecord as error:
            log.warning("record_skipped", stage="serve", error_type=error.error_type, offset=record.offset)
            return None
        match decoded:
            case EpisodeClosed():
                ids = [message.id for message in decoded.messages]
                data = orjson.dumps(
                    {**decoded.model_dump(mode="json", include=CLOSED_FIELDS), "message_ids": ids}
                ).decode()
                decoded = decoded.model_copy(update={"messages": (), "overlap": ()})
            case SummaryCreated() | SummaryDeleted():
                data = decoded.model_dump_json()
            case _:
                return None
        if not isinstance(decoded, SummaryDeleted):
            self._users[decoded.conversation_id] = decoded.user_id
            self._users.move_to_end(decoded.conversation_id)
            if len(self._users) > KNOWN_CONVERSATIONS:
                self._users.popitem(last=False)
        position = position_id(self.topics, at)
        return Published(position, kind, decoded, data, source, record.offset, time.monotonic())

    def _is_for(self, wanted: StreamFilter, published: Published) -> bool:
        event = published.event
        # a deletion names no user
        user_id = self._users.get(event.conversation_id, "") if isinstance(event, SummaryDeleted) else event.user_id
        return wanted.may_have(published.kind, event.conversation_id, EventOwner(event.tenant_id, user_id))

    async def _missed(
        self, wanted: StreamFilter, at: dict[TopicPartition, int], here: Mapping[TopicPartition, int]
    ) -> list[Published]:
        """Read one turn's records between two positions, advancing `at`.

        Raises: BrokerUnavailable, KafkaError, StoreUnavailable.
        """
        missed: list[Published] = []
        left, behind = RECORDS_PER_TURN, _behind(at, here)
        while await self._caught_up.get(wanted.key_id) >= RECORDS_PER_MINUTE:  # noqa: ASYNC110 – a minute passes
            await asyncio.sleep(TICK_SECONDS)
        work = Paced()
        async with (
            # those that have missed few records come first
            self._turns.of(wanted.key_id, sum(end - at[tp] for tp, end in behind.items())),
            open_log(self._kafka) as reading,
            reading.reader(*self.topics, max_partition_fetch_bytes=FETCHED_BYTES) as consumer,
        ):
            first = await consumer.beginning_offsets(list(behind))
            consumer.assign(list(behind))
            for tp in behind:
                consumer.seek(tp, max(first[tp], at[tp]))
            async for records in batches(consumer, behind, RECORDS_TOGETHER):
                for record in records:
                    if (event := self._published(record, at, wanted)) and self._is_for(wanted, event):
                        missed.append(event)
                    await work.rest()
                left -= len(records)
                if left <= 0 or sum(len(event.data) for event in missed) >= BYTES_PER_TURN:
                    break
            else:
                at |= behind  # there may be no records before the end, only transaction markers
        await self._caught_up.incr(wanted.key_id, 60, RECORDS_PER_TURN - left)
        return await self.still_there(missed)


def _behind(at: Mapping[TopicPartition, int], here: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {tp: end for tp, end in here.items() if at[tp] < end}


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
    if len(position) > LONGEST_POSITION or len(listed) != len(topics) or not all(map(_OFFSETS.fullmatch, listed)):
        raise PositionInvalid
    return {
        TopicPartition(topic, number): int(offset)
        for topic, offsets in zip(topics, listed, strict=True)
        for number, offset in enumerate(filter(None, offsets.split(",")))
    }
