"""Kafka's clients, and what the engine asks Kafka about a source topic.

Two requests use versions that aiokafka does not support. aiokafka supports `OffsetFetch` up to version 3. While the
group's coordinator is still applying the offsets of a transaction, that version answers with the offsets from before
it; version 7 (KIP-447) answers that they are not stable. aiokafka supports `Metadata` up to version 5. Topic ids came
with version 10 (KIP-516), which uses the flexible encoding (KIP-482).

A topic that was deleted and recreated has the same name but a different id. If a topic got more partitions, keys have
moved away from their state. So each bookmark records the topic's id, and each commit's metadata its partition count.
"""

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    IncompatibleBrokerVersion,
    KafkaError,
    NotCoordinatorError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)
from aiokafka.structs import OffsetAndMetadata

from faust_eos.database import DatabasePosition
from faust_eos.errors import SourceGrown, SourceRecreated, SourceReplaced

if TYPE_CHECKING:  # commands that only read offsets do not load the metrics
    from faust_eos.metrics import EngineMetrics

log = structlog.get_logger()

CommittedOffsets = dict[TopicPartition, OffsetAndMetadata]

OFFSET_FETCH, VERSION = 9, 7
STRING, TAGS = CompactString("utf-8"), ("tags", TaggedFields)
NO_TAGS: dict[int, bytes] = {}
MOVED = (CoordinatorNotAvailableError.errno, NotCoordinatorError.errno)
RETRY_SECONDS = 0.02
"""Wait before the group is asked again; it doubles each time."""
LONGEST_RETRY_SECONDS = 0.5
LOADING_SECONDS = 20.0
"""Within this time, a new cluster must have created its offsets topic, and a group's coordinator must have loaded its
offsets; their partition has at most 100 MB, and usually far less."""
NO_ID = (0, 0)
LONG_BITS = 2**64 - 1


def _array(*fields: Any) -> CompactArray:
    """Make an array of structures; in the flexible encoding, each of them ends with tags."""
    return CompactArray(*fields, TAGS)


_COMMITTED = _array(
    ("partition", Int32), ("offset", Int64), ("leader_epoch", Int32), ("metadata", STRING), ("error_code", Int16)
)


class _Answer(Response):
    API_KEY = OFFSET_FETCH
    API_VERSION = VERSION
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("topics", _array(("name", STRING), ("partitions", _COMMITTED))),
        ("error_code", Int16),
        TAGS,
    )


class _Question(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = OFFSET_FETCH
    API_VERSION = VERSION
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema(
        ("group", STRING),
        ("topics", _array(("name", STRING), ("partitions", CompactArray(Int32)))),
        ("require_stable", Boolean),
        TAGS,
    )


class OffsetFetch(Request[_Question]):
    """Requests committed offsets. With `stable`, the broker answers with an error while a transaction may change them.

    `topics` gives the partitions of each topic; None asks for everything that the group has committed.
    """

    API_KEY = OFFSET_FETCH

    def __init__(self, group: str, topics: Mapping[str, Sequence[int]] | None, *, stable: bool) -> None:
        asked = None if topics is None else [(topic, of_topic, NO_TAGS) for topic, of_topic in topics.items()]
        self._asked: tuple[Any, ...] = (group, asked, stable, NO_TAGS)

    def build(self, request_struct_class: type[_Question]) -> _Question:
        return request_struct_class(*self._asked)


UNSTABLE_OFFSET_COMMIT = for_code(88)
"""A transaction that may change the offsets is not complete."""
TEMPORARY = (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError, UNSTABLE_OFFSET_COMMIT)


async def committed_offsets(admin: AIOKafkaAdminClient, group: str) -> CommittedOffsets:
    """Return everything that the group has committed, without waiting for transactions.

    This waits while the group has no coordinator, or one that is loading its offsets, as after a start; aiokafka's own
    method would take the latter's answer to mean that the group has no offsets. Raises: KafkaError.
    """

    async def ask() -> Any:
        coordinator = await admin.find_coordinator(group)
        return await admin._send_request(OffsetFetch(group, None, stable=False), coordinator)  # noqa: SLF001 – aiokafka's own method asks with version 3

    return await _answer(ask, group, LOADING_SECONDS)


async def _answer(ask: Callable[[], Awaitable[Any]], group: str, within_seconds: float = math.inf) -> CommittedOffsets:
    """Ask until there is an answer, or an error that is not temporary. Raises: KafkaError."""
    wait, deadline = RETRY_SECONDS, time.monotonic() + within_seconds
    while True:
        try:
            code, offsets = _read(await ask())
            if not code:
                return offsets
            raise for_code(code)(f"group {group}")
        except TEMPORARY:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(wait)
        wait = min(2 * wait, LONGEST_RETRY_SECONDS)


def _read(answer: Any) -> tuple[int, CommittedOffsets]:
    """Return the first error code, or 0, and the committed offsets."""
    offsets: CommittedOffsets = {}
    codes = [answer.error_code]
    for topic, partitions, _ in answer.topics:
        for partition, offset, _, metadata, error_code, _ in partitions:
            codes.append(error_code)
            if offset >= 0:
                offsets[TopicPartition(topic, partition)] = OffsetAndMetadata(offset, metadata or "")
    return next(filter(None, codes), 0), offsets


_TOPIC_ID = ("id_high", Int64), ("id_low", Int64)
"""The two halves of a UUID."""
_PARTITION = _array(
    ("error_code", Int16),
    ("partition", Int32),
    ("leader", Int32),
    ("leader_epoch", Int32),
    ("replicas", CompactArray(Int32)),
    ("isr", CompactArray(Int32)),
    ("offline_replicas", CompactArray(Int32)),
)
_TOPIC = _array(
    ("error_code", Int16),
    ("topic", STRING),
    *_TOPIC_ID,
    ("is_internal", Boolean),
    ("partitions", _PARTITION),
    ("authorized_operations", Int32),
)


class MetadataResponse_v10(Response):  # noqa: N801 – named like aiokafka's
    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", _array(("node_id", Int32), ("host", STRING), ("port", Int32), ("rack", STRING))),
        ("cluster_id", STRING),
        ("controller_id", Int32),
        ("topics", _TOPIC),
        ("authorized_operations", Int32),
        TAGS,
    )


class MetadataRequest_v10(RequestStruct):  # noqa: N801 – named like aiokafka's
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 10
    RESPONSE_TYPE = MetadataResponse_v10
    SCHEMA = Schema(
        ("topics", _array(*_TOPIC_ID, ("name", STRING))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        TAGS,
    )


class TopicIdsRequest(Request[MetadataRequest_v10]):
    """Asks for the metadata of some topics, with their ids, without creating any of them."""

    API_KEY = 3

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[MetadataRequest_v10]) -> MetadataRequest_v10:
        topics = [(*NO_ID, topic, NO_TAGS) for topic in self._topics]
        return request_struct_class(topics, False, False, False, NO_TAGS)


class Admin(AIOKafkaAdminClient):
    """aiokafka's admin client, which can also ask for the ids of topics."""

    async def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the topics' ids in hex, by name; empty if the broker has no topic ids. Raises: KafkaError."""
        try:
            answer = await self._send_request(TopicIdsRequest(topics))
        except (NotImplementedError, IncompatibleBrokerVersion):  # the broker does not know this version
            return {}
        return ids_in(answer.to_object()["topics"])


def ids_in(topics: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the ids, in hex, of the topics that exist and have one."""
    ids = {t["topic"]: (t["id_high"], t["id_low"]) for t in topics if not t["error_code"]}
    return {
        topic: f"{high & LONG_BITS:016x}{low & LONG_BITS:016x}"
        for topic, (high, low) in ids.items()
        if (high, low) != NO_ID
    }


class Clients:
    """Makes the Kafka clients of one partition. In tests, a model of Kafka can take its place."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """`settings` are arguments for every client, such as `bootstrap_servers`."""
        self.settings = settings

    def producer(self, **settings: Any) -> Any:
        return AIOKafkaProducer(**self.settings, **settings)

    def consumer(self, **settings: Any) -> Any:
        return AIOKafkaConsumer(**self.settings, **settings)

    def admin(self) -> Any:
        return Admin(**self.settings)

    async def committed(self, kafka: Any, group: str, source: TopicPartition) -> OffsetAndMetadata | None:
        """Return what the group has committed, once no decided transaction is pending; None if there is nothing.

        `kafka` is the group's aiokafka consumer. This waits for transactions that are under way, without a limit of its
        own. Raises: KafkaError.
        """
        offsets = await _from_coordinator(kafka, group, {source.topic: [source.partition]}, stable=True)
        return offsets.get(source)

    async def metadata(self, kafka: Any, group: str, topic: str, partitions: int) -> list[str]:
        """Return the metadata of the group's commits in a topic, where there is any, without waiting for transactions.

        `kafka` is the group's aiokafka consumer. Raises: KafkaError.
        """
        offsets = await _from_coordinator(kafka, group, {topic: range(partitions)}, stable=False)
        return [committed.metadata for committed in offsets.values() if committed.metadata]


@asynccontextmanager
async def started(admin: Any) -> AsyncIterator[Any]:
    """Start an admin client, and close it at the end of the block. Raises: KafkaError."""
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


async def _from_coordinator(
    kafka: Any, group: str, topics: Mapping[str, Sequence[int]], *, stable: bool
) -> CommittedOffsets:
    """Ask the coordinator of the consumer's group, as often as it takes. Raises: KafkaError."""
    coordinator = kafka._coordinator  # noqa: SLF001 – aiokafka has no public way, so it is pinned exactly

    async def ask() -> Any:
        await coordinator.ensure_coordinator_known()
        answer = await coordinator._send_req(OffsetFetch(group, topics, stable=stable))  # noqa: SLF001 – see above
        if answer.error_code in MOVED:
            coordinator.coordinator_dead()
        return answer

    return await _answer(ask, group)


METADATA = re.compile(r"partitions=([1-9]\d{0,8})")


def encode_partitions(partitions: int) -> str:
    """Return the metadata of a commit."""
    return f"partitions={partitions}"


def least_partitions(metadata: Iterable[str]) -> int | None:
    """Return the smallest partition count named in the metadata of commits; None if there is none."""
    return min((int(match[1]) for text in metadata if (match := METADATA.fullmatch(text))), default=None)


def check_source(topic: str, known: DatabasePosition, actual: str) -> None:
    """Refuse a source topic whose id differs from that in the last bookmark. Raises: SourceRecreated."""
    if known.source >= 0 and known.source_id and actual and known.source_id != actual:
        raise SourceRecreated(topic=topic, expected=known.source_id, found=actual)


async def check_partitions(clients: Clients, kafka: Any, group: str, topic: str, *, may_grow: bool = False) -> int:
    """Return the topic's partition count. `kafka` is the group's aiokafka consumer.

    Raises: SourceGrown if the group has committed while there were fewer partitions; KafkaError, OSError, TimeoutError.
    """
    async with started(clients.admin()) as admin:
        described = await admin.describe_topics([topic])
    partitions = len(described[0]["partitions"])
    if not partitions:
        raise UnknownTopicOrPartitionError(topic)
    if may_grow:
        return partitions
    before = least_partitions(await clients.metadata(kafka, group, topic, partitions))
    if before is not None and before < partitions:
        raise SourceGrown(topic=topic, found=partitions, expected=before)
    return partitions


async def watch_sources(app: Any) -> None:
    """Check the sources every `source_look_seconds`; stop the worker when one was recreated or got more partitions.

    In either case aiokafka itself carries on without an error.
    """
    consumer = app.consumer
    while True:
        await asyncio.sleep(app.engine.source_look_seconds)
        opened = [(s.topic, p.session.database) for s, p in consumer.partitions.items() if p.session is not None]
        try:
            for topic in sorted({topic for topic, _ in opened}):
                clients = consumer.clients()
                async with started(clients.admin()) as admin:
                    topic_id = (await admin.topic_ids([topic])).get(topic, "")
                for database in [database for name, database in opened if name == topic]:
                    check_source(topic, database.position, topic_id)
                may_grow = app.engine.sources_may_grow
                await check_partitions(clients, consumer.kafka, app.conf.id, topic, may_grow=may_grow)
        except (SourceRecreated, SourceGrown) as error:
            consumer.stop_worker(error)
            return
        except (KafkaError, OSError, TimeoutError, AssertionError):  # no broker answers or is known yet
            continue


def check_order(source: TopicPartition, offset: int, expected: int) -> None:
    """Refuse records from before the expected offset; aiokafka silently starts over if the topic was recreated.

    Raises: OffsetOutOfRangeError.
    """
    if offset < expected:
        raise OffsetOutOfRangeError(f"{source.topic}-{source.partition} went back from {expected} to {offset}")


async def readable(
    kafka: Any,
    source: TopicPartition,
    position: int,
    metrics: "EngineMetrics",
    counted: int = 0,
    finished: Collection[int] = frozenset(),
) -> int:
    """Return `position`, or the log start if that is later; the offsets between them expired unread.

    Only offsets below the log start are lost; above it, compaction, aborted records and transaction markers leave
    holes. `kafka` is an aiokafka consumer. `position` is −1 for a group that has none, which then begins at the log
    start. Losses below `counted` were already reported or concern finished records. `finished` holds the offsets beyond
    `counted` that are finished.

    Raises: SourceReplaced if the source ends before `position`; KafkaError, TimeoutError.
    """
    first = int((await kafka.beginning_offsets([source]))[source])
    end = int((await kafka.end_offsets([source]))[source])
    if position > end:
        raise SourceReplaced(where=f"{source.topic}-{source.partition}", end=end, source=position)
    unread = max(position, counted)
    lost = first - unread - sum(unread <= offset < first for offset in finished)
    if position >= 0 and lost > 0:
        first_lost = next(offset for offset in count(unread) if offset not in finished)
        report_expired(source, metrics, first_lost, first, lost)
    return max(position, first)


def report_expired(source: TopicPartition, metrics: "EngineMetrics", first: int, next_offset: int, lost: int) -> None:
    """Count and log records that were deleted before they were read.

    `first` is the offset of the first lost record and `lost` their number; `next_offset` is that of the first one left.
    """
    metrics.expired(lost)
    log.error(
        "records_expired",
        topic=source.topic,
        partition=source.partition,
        stage="consume",
        error_type="expired",
        first_lost=first,
        next_offset=next_offset,
        count=lost,
    )
