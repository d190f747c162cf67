"""A group's committed offsets with their metadata, as of the last transaction.

aiokafka knows `OffsetFetch` up to version 3. While the group's coordinator is still taking over the offsets of a
transaction, that answers with those before it; version 7 (KIP-447) answers that they are not stable. Its schema: Kafka
protocol guide.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
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
NO_TAGS: dict[int, bytes] = {}
UNSTABLE_OFFSET_COMMIT = 88
MOVED = (CoordinatorNotAvailableError, NotCoordinatorError)
RETRY_SECONDS = 0.02
"""Wait before the group is asked again; doubles each time."""
LONGEST_RETRY_SECONDS = 0.5
LOADING_SECONDS = 20.0
"""Time in which a group's coordinator must have read the offsets: a topic of it has at most 100 MB, mostly far less."""
LOADING_RETRY_SECONDS = 0.1


class _Answer(Response):
    API_KEY = OFFSET_FETCH
    API_VERSION = VERSION
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("error_code", Int16),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class _Question(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = OFFSET_FETCH
    API_VERSION = VERSION
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema(
        ("group", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")),
                ("partitions", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


class OffsetFetch(Request[_Question]):
    """Asks for committed offsets; where `stable`, for an error while a transaction may change them.

    `topics`: the partitions of each; None: all of the group's.
    """

    API_KEY = OFFSET_FETCH

    def __init__(self, group: str, topics: Mapping[str, Sequence[int]] | None, *, stable: bool) -> None:
        asked = None if topics is None else [(topic, of_topic, NO_TAGS) for topic, of_topic in topics.items()]
        self._asked: tuple[Any, ...] = (group, asked, stable, NO_TAGS)

    def build(self, request_struct_class: type[_Question]) -> _Question:
        return request_struct_class(*self._asked)


async def committed(kafka: Any, group: str, source: TopicPartition) -> OffsetAndMetadata | None:
    """Return what the group has committed, after every transaction that is decided; None if there is nothing.

    `kafka`: the group's aiokafka consumer. Waits for transactions that are under way, without a limit of its own.
    Raises: KafkaError.
    """
    found = await _answer(kafka, OffsetFetch(group, {source.topic: [source.partition]}, stable=True))
    return found.get(source)


async def committed_metadata(kafka: Any, group: str, topic: str, partitions: int) -> list[str]:
    """Return the metadata of the group's commits in a topic, of those that have any; transactions are not waited for.

    `kafka`: the group's aiokafka consumer. Raises: KafkaError.
    """
    found = await _answer(kafka, OffsetFetch(group, {topic: range(partitions)}, stable=False))
    return [committed.metadata for committed in found.values() if committed.metadata]


async def committed_offsets(admin: AIOKafkaAdminClient, group: str) -> CommittedOffsets:
    """Return all that the group has committed; transactions are not waited for.

    Waits while the group's coordinator reads the offsets, as it does after its start: aiokafka's own method takes that
    answer for a group without any. Raises: KafkaError, also where a coordinator is not known yet.
    """
    coordinator = await admin.find_coordinator(group)
    deadline = time.monotonic() + LOADING_SECONDS
    while True:
        answer = await admin._send_request(OffsetFetch(group, None, stable=False), coordinator)  # noqa: SLF001 – its own method asks as version 3
        code, found = _read(answer)
        if not code:
            return found
        error = for_code(code)
        if error is not CoordinatorLoadInProgressError or time.monotonic() > deadline:
            raise error(f"group {group}")
        await asyncio.sleep(LOADING_RETRY_SECONDS)


async def _answer(kafka: Any, request: OffsetFetch) -> CommittedOffsets:
    """Ask until there is an answer, or an error that does not pass. Raises: KafkaError."""
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


def _read(answer: Any) -> tuple[int, CommittedOffsets]:
    """Return the first error code, 0 without one, and what is committed."""
    found: CommittedOffsets = {}
    codes = [answer.error_code]
    for topic, partitions, _ in answer.topics:
        for partition, offset, _, metadata, error_code, _ in partitions:
            codes.append(error_code)
            if offset >= 0:
                found[TopicPartition(topic, partition)] = OffsetAndMetadata(offset, metadata or "")
    return next(filter(None, codes), 0), found
