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
NO_TAGS: dict[int, bytes] = {}
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


class OffsetFetch(Request[_Question]):
    """Asks for committed offsets of one topic; where `stable`, for an error while a transaction may change them."""

    API_KEY = OFFSET_FETCH

    def __init__(self, group: str, topic: str, partitions: list[int], *, stable: bool) -> None:
        self._asked: tuple[Any, ...] = (group, [(topic, partitions, NO_TAGS)], stable, NO_TAGS)

    def build(self, request_struct_class: type[_Question]) -> _Question:
        return request_struct_class(*self._asked)


async def committed(kafka: Any, group: str, source: TopicPartition) -> OffsetAndMetadata | None:
    """Return what the group has committed, after every transaction that is decided; None if there is nothing.

    `kafka`: the group's aiokafka consumer. Waits for transactions that are under way, without a limit of its own.
    Raises: KafkaError.
    """
    found = await _answer(kafka, OffsetFetch(group, source.topic, [source.partition], stable=True))
    return found.get(source.partition)


async def committed_metadata(kafka: Any, group: str, topic: str, partitions: int) -> list[str]:
    """Return the metadata of the group's commits in a topic, of those that have any; transactions are not waited for.

    `kafka`: the group's aiokafka consumer. Raises: KafkaError.
    """
    found = await _answer(kafka, OffsetFetch(group, topic, list(range(partitions)), stable=False))
    return [committed.metadata for committed in found.values() if committed.metadata]


async def _answer(kafka: Any, request: OffsetFetch) -> dict[int, OffsetAndMetadata]:
    """Return what is committed, by partition. Raises: KafkaError."""
    wait = RETRY_SECONDS
    coordinator = kafka._coordinator  # noqa: SLF001 – aiokafka has no seam: it is pinned exactly
    while True:
        await coordinator.ensure_coordinator_known()
        answer = await coordinator._send_req(request)  # noqa: SLF001 – see above
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


def _read(answer: Any) -> tuple[int, dict[int, OffsetAndMetadata]]:
    """Return the first error code, and what is committed by partition."""
    answered = [of_partition for _, partitions, _ in answer.topics for of_partition in partitions]
    codes = [answer.error_code, *(error_code for *_, error_code, _ in answered)]
    found = {partition: OffsetAndMetadata(offset, metadata or "") for partition, offset, _, metadata, _, _ in answered}
    committed = {partition: one for partition, one in found.items() if one.offset >= 0}
    return next(filter(None, codes), 0), committed
