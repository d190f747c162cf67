"""Kafka's clients, with requests in versions that aiokafka does not know: committed offsets, and ids of topics.

aiokafka knows `OffsetFetch` up to version 3. While the group's coordinator is still applying the offsets of a
transaction, that version answers with the offsets from before it; version 7 (KIP-447) answers that they are not stable.
aiokafka knows `Metadata` up to version 5. Topic ids came with version 10 (KIP-516), which uses the flexible encoding
(KIP-482).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    IncompatibleBrokerVersion,
    NotCoordinatorError,
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

CommittedOffsets = dict[TopicPartition, OffsetAndMetadata]

OFFSET_FETCH, VERSION = 9, 7
STRING, TAGS = CompactString("utf-8"), ("tags", TaggedFields)
NO_TAGS: dict[int, bytes] = {}
UNSTABLE_OFFSET_COMMIT = 88
MOVED = (CoordinatorNotAvailableError, NotCoordinatorError)
RETRY_SECONDS = 0.02
"""Wait before the group is asked again; it doubles each time."""
LONGEST_RETRY_SECONDS = 0.5
LOADING_SECONDS = 20.0
"""A group's coordinator must have loaded its offsets within this time; their partition has at most 100 MB, and usually
far less."""
LOADING_RETRY_SECONDS = 0.1
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
    """Asks for committed offsets; with `stable`, the answer is an error while a transaction may change them.

    `topics` gives the partitions of each topic; None asks for everything that the group has committed.
    """

    API_KEY = OFFSET_FETCH

    def __init__(self, group: str, topics: Mapping[str, Sequence[int]] | None, *, stable: bool) -> None:
        asked = None if topics is None else [(topic, of_topic, NO_TAGS) for topic, of_topic in topics.items()]
        self._asked: tuple[Any, ...] = (group, asked, stable, NO_TAGS)

    def build(self, request_struct_class: type[_Question]) -> _Question:
        return request_struct_class(*self._asked)


async def committed_offsets(admin: AIOKafkaAdminClient, group: str) -> CommittedOffsets:
    """Return everything that the group has committed, without waiting for transactions.

    This waits while the group's coordinator loads its offsets, as it does after a start; aiokafka's own method takes
    that answer for a group without offsets. Raises: KafkaError, for example while no coordinator is known.
    """
    coordinator = await admin.find_coordinator(group)
    deadline = time.monotonic() + LOADING_SECONDS
    while True:
        answer = await admin._send_request(OffsetFetch(group, None, stable=False), coordinator)  # noqa: SLF001 – aiokafka's own method asks with version 3
        code, found = _read(answer)
        if not code:
            return found
        error = for_code(code)
        if error is not CoordinatorLoadInProgressError or time.monotonic() > deadline:
            raise error(f"group {group}")
        await asyncio.sleep(LOADING_RETRY_SECONDS)


def _read(answer: Any) -> tuple[int, CommittedOffsets]:
    """Return the first error code, or 0, and the committed offsets."""
    found: CommittedOffsets = {}
    codes = [answer.error_code]
    for topic, partitions, _ in answer.topics:
        for partition, offset, _, metadata, error_code, _ in partitions:
            codes.append(error_code)
            if offset >= 0:
                found[TopicPartition(topic, partition)] = OffsetAndMetadata(offset, metadata or "")
    return next(filter(None, codes), 0), found


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
        found = await _answer(kafka, OffsetFetch(group, {source.topic: [source.partition]}, stable=True))
        return found.get(source)

    async def metadata(self, kafka: Any, group: str, topic: str, partitions: int) -> list[str]:
        """Return the metadata of the group's commits in a topic, where there is any, without waiting for transactions.

        `kafka` is the group's aiokafka consumer. Raises: KafkaError.
        """
        found = await _answer(kafka, OffsetFetch(group, {topic: range(partitions)}, stable=False))
        return [committed.metadata for committed in found.values() if committed.metadata]


@asynccontextmanager
async def started(admin: Any) -> AsyncIterator[Any]:
    """Start an admin client, and close it at the end of the block. Raises: KafkaError."""
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


async def _answer(kafka: Any, request: OffsetFetch) -> CommittedOffsets:
    """Ask until there is an answer, or an error that will not pass. Raises: KafkaError."""
    wait = RETRY_SECONDS
    coordinator = kafka._coordinator  # noqa: SLF001 – aiokafka has no seam: it is pinned exactly
    while True:
        await coordinator.ensure_coordinator_known()
        code, found = _read(await coordinator._send_req(request))  # noqa: SLF001 – see above
        if not code:
            return found
        error = for_code(code)
        if error in MOVED:
            coordinator.coordinator_dead()
        elif code != UNSTABLE_OFFSET_COMMIT and error is not CoordinatorLoadInProgressError:
            raise error()
        await asyncio.sleep(wait)
        wait = min(2 * wait, LONGEST_RETRY_SECONDS)
