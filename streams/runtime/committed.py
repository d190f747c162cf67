"""A group's committed offset with its metadata, as of the last transaction.

aiokafka knows `OffsetFetch` up to version 3. While the group's coordinator is still taking over the offsets of a
transaction, that answers with those before it; version 7 (KIP-447) answers that they are not stable. Its schema: Kafka
protocol guide.
"""

import asyncio
from typing import Any

from aiokafka import TopicPartition
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

OFFSET_FETCH, VERSION = 9, 7
UNSTABLE_OFFSET_COMMIT = 88
MOVED = (CoordinatorNotAvailableError, NotCoordinatorError)
RETRY_SECONDS = 0.02
"""Wait before the group is asked again; doubles each time."""
LONGEST_RETRY_SECONDS = 0.5


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


class StableOffsetFetch(Request[_Question]):
    """Asks for the committed offset of one partition, and for an error while a transaction may change it."""

    API_KEY = OFFSET_FETCH

    def __init__(self, group: str, source: TopicPartition) -> None:
        self._group = group
        self._source = source

    def build(self, request_struct_class: type[_Question]) -> _Question:
        topic, partition = self._source
        return request_struct_class(self._group, [(topic, [partition], {})], True, {})


async def committed(kafka: Any, group: str, source: TopicPartition) -> OffsetAndMetadata | None:
    """Return what the group has committed, after every transaction that is decided; None if there is nothing.

    `kafka`: the group's aiokafka consumer. Waits for transactions that are under way, without a limit of its own.
    Raises: KafkaError.
    """
    wait = RETRY_SECONDS
    coordinator = kafka._coordinator  # noqa: SLF001 – aiokafka has no seam: it is pinned exactly
    while True:
        await coordinator.ensure_coordinator_known()
        answer = await coordinator._send_req(StableOffsetFetch(group, source))  # noqa: SLF001 – see above
        code, found = _read(answer)
        error = for_code(code)
        if error in MOVED:
            coordinator.coordinator_dead()
        elif code and code != UNSTABLE_OFFSET_COMMIT and error is not CoordinatorLoadInProgressError:
            raise error()
        elif not code:
            return found
        await asyncio.sleep(wait)
        wait = min(2 * wait, LONGEST_RETRY_SECONDS)


def _read(answer: Any) -> tuple[int, OffsetAndMetadata | None]:
    """Return the error code and what is committed."""
    if answer.error_code:
        return answer.error_code, None
    for _, partitions, _ in answer.topics:
        for _, offset, _, metadata, error_code, _ in partitions:
            return error_code, OffsetAndMetadata(offset, metadata or "") if offset >= 0 else None
    return 0, None
