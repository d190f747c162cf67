"""What the engine asks of Kafka: transactions, offsets, and ids of topics."""

import asyncio
import struct
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    IncompatibleBrokerVersion,
    InvalidTxnState,
    KafkaConnectionError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)
from aiokafka.structs import OffsetAndMetadata
from hypothesis import example, given
from hypothesis import strategies as st

from distributions.engine.tests.simulation.clients import Builder
from distributions.engine.tests.simulation.virtual_time import run_in_virtual_time
from faust_eos.changelog import Bookmark
from faust_eos.database import DatabasePosition
from faust_eos.errors import OutputMissing, SourceRecreated
from faust_eos.kafka import (
    UNSTABLE_OFFSET_COMMIT,
    Admin,
    Clients,
    MetadataRequest_v10,
    MetadataResponse_v10,
    OffsetFetch,
    TopicIdsRequest,
    check_order,
    check_source,
    committed_offsets,
    ids_in,
)
from faust_eos.options import Options
from faust_eos.transaction import Output, Sent, TransactionalProducer, all_arrived, require_outputs, transactional_id
from tests.rows import with_rows

topics = st.text("ab0.-_", min_size=1, max_size=8)
"""Names of the characters that Kafka allows, which are letters, digits, full stops, hyphens and underscores."""
apps = st.text("ab0.-_~", min_size=1, max_size=8)
writers = st.tuples(apps, st.builds(TopicPartition, topics, st.integers(0, 20)))


class Unstartable:
    """A producer like aiokafka's, for a starting broker that names no broker yet."""

    async def start(self) -> None:
        raise AssertionError("Did we not perform bootstrap?")


class Growing:
    """A producer like aiokafka's, for a topic that gets more partitions."""

    def __init__(self) -> None:
        self.count = 1
        self.asked = 0
        self.written: set[int] = set()

    async def partitions_for(self, _: str) -> set[int]:
        self.asked += 1
        return set(range(self.count))

    def create_batch(self) -> Builder:
        return Builder()

    async def send_batch(self, batch: Builder, topic: str, *, partition: int) -> asyncio.Future[Any]:
        self.written.add(partition)
        acknowledged: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        acknowledged.set_result(SimpleNamespace(offset=0))
        return acknowledged

    async def begin_transaction(self) -> None: ...

    async def send_offsets_to_transaction(self, offsets: dict[TopicPartition, Any], group: str) -> None: ...

    async def commit_transaction(self) -> None: ...


async def test_each_commit_asks_once_for_its_topics_partition_count() -> None:
    growing = Growing()
    clients: Any = SimpleNamespace(producer=lambda **_: growing)
    producer = TransactionalProducer("t", clients, Options())
    outputs = [Output("out", str(number).encode(), b"", timestamp_ms=0) for number in range(40)]
    await producer.commit_outputs(outputs, {}, "group")
    assert (growing.asked, growing.written) == (1, {0})
    growing.count = 2
    await producer.commit_outputs(outputs, {}, "group")
    assert (growing.asked, growing.written) == (2, {0, 1})


class Refusing(Growing):
    """A producer like aiokafka's, for a topic that refuses what it is sent."""

    committed = False

    async def send_batch(self, batch: Builder, topic: str, *, partition: int) -> asyncio.Future[Any]:
        acknowledged = await super().send_batch(batch, topic, partition=partition)
        refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        refused.set_exception(MessageSizeTooLargeError())
        return refused if topic == "refusing" else acknowledged

    async def commit_transaction(self) -> None:
        self.committed = True


async def test_transaction_is_not_committed_without_all_outputs() -> None:
    refusing = Refusing()
    clients: Any = SimpleNamespace(producer=lambda **_: refusing)
    outputs = [Output(topic, b"k", b"", timestamp_ms=0) for topic in ("out", "refusing")]
    producer = TransactionalProducer("t", clients, Options())
    with pytest.raises(MessageSizeTooLargeError):
        await producer.commit_outputs(outputs, {}, "group")
    with pytest.raises(MessageSizeTooLargeError):
        await producer.commit(outputs, {}, Bookmark(1, "lineage", [], ""), TopicPartition("messages", 0), "group")
    assert not refusing.committed


async def test_coordinator_without_an_address_counts_as_unreachable() -> None:
    clients: Any = SimpleNamespace(producer=lambda **_: Unstartable())
    with pytest.raises(KafkaConnectionError):
        await TransactionalProducer("t", clients, Options()).open(timeout_seconds=5)


@given(one=writers, other=writers)
@example(one=("a", TopicPartition("b-c", 1)), other=("a-b", TopicPartition("c", 1)))
@example(one=("a", TopicPartition("b-1", 2)), other=("a-b", TopicPartition("1", 2)))
def test_no_two_partitions_share_a_transactional_id(
    one: tuple[str, TopicPartition], other: tuple[str, TopicPartition]
) -> None:
    assert (transactional_id(*one) == transactional_id(*other)) == (one == other)


@given(writer=writers)
def test_app_users_rights_cover_its_transactional_ids(writer: tuple[str, TopicPartition]) -> None:
    prefix = f"{writer[0]}-"
    assert transactional_id(*writer).startswith(prefix)


async def test_authorization_error_of_a_topic_outranks_other_answers() -> None:
    loop = asyncio.get_running_loop()
    others, refused = Sent(loop.create_future(), 1, "others"), Sent(loop.create_future(), 1, "refused")
    waiting = asyncio.create_task(all_arrived([others, refused]))
    others.delivered.set_exception(InvalidTxnState())
    await asyncio.sleep(0)
    refused.delivered.set_exception(TopicAuthorizationFailedError("refused"))
    with pytest.raises(TopicAuthorizationFailedError) as raised:
        await waiting
    assert raised.value.__notes__ == ["topic refused"]
    with pytest.raises(InvalidTxnState):
        await all_arrived([others])


class Deleted:
    """Clients like a partition's, of a broker on which the topic "gone" was deleted."""

    def admin(self) -> Any:
        return self

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        return [{"topic": name, "partitions": [] if name == "gone" else [0]} for name in names]


async def test_missing_output_topic_is_named() -> None:
    clients: Any = Deleted()
    await require_outputs(clients, ["here"])
    with pytest.raises(OutputMissing, match="gone"):
        await require_outputs(clients, ["here", "gone"])


SOURCE = TopicPartition("in", 0)
LOADING, REFUSED = 14, 30
ONE_OFFSET = [("in", [(0, 7, -1, "m", 0, {}), (1, -1, -1, None, 0, {})], {})]


class Coordinator:
    """A coordinator like aiokafka's, whose offset is unstable for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._stable_at = seconds
        self.asked = 0

    async def ensure_coordinator_known(self) -> None: ...

    async def _send_req(self, _: Any) -> Any:
        self.asked += 1
        unstable = asyncio.get_running_loop().time() < self._stable_at
        found = (0, -1, -1, None, UNSTABLE_OFFSET_COMMIT.errno, {}) if unstable else (0, 7, -1, "m", 0, {})
        return SimpleNamespace(error_code=0, topics=[("in", [found], {})])


def asked_for(seconds: float) -> tuple[OffsetAndMetadata | None, int, float]:
    """Return the answer, the number of requests, and the seconds they took."""

    async def story() -> Any:
        coordinator = Coordinator(seconds)
        found = await Clients({}).committed(SimpleNamespace(_coordinator=coordinator), "group", SOURCE)
        return found, coordinator.asked, asyncio.get_running_loop().time()

    result: tuple[OffsetAndMetadata | None, int, float] = run_in_virtual_time(story())
    return result


def test_offset_that_stabilizes_soon_is_read_soon() -> None:
    found, _, seconds = asked_for(0.05)
    assert found == OffsetAndMetadata(7, "m")
    assert seconds < 0.1


def test_unstable_offset_is_polled_less_and_less_often() -> None:
    found, asked, seconds = asked_for(10.0)
    assert found == OffsetAndMetadata(7, "m")
    assert asked < 30
    assert seconds < 10.6


class OffsetsAdmin:
    """An admin client like aiokafka's. The coordinator answers with these errors first, then with these topics."""

    def __init__(self, errors: list[int], topics: list[Any]) -> None:
        self._errors = errors
        self._topics = topics

    async def find_coordinator(self, _: str) -> int:
        return 3

    async def _send_request(self, request: OffsetFetch, node_id: int) -> Any:
        assert (request._asked[:2], node_id) == (("group", None), 3)  # all topics, from the broker that knows them
        error = self._errors.pop(0) if self._errors else 0
        return SimpleNamespace(error_code=error, topics=[] if error else self._topics)


def all_of(errors: list[int], topics: list[Any]) -> dict[TopicPartition, OffsetAndMetadata]:
    found: dict[TopicPartition, OffsetAndMetadata] = asyncio.run(
        committed_offsets(OffsetsAdmin(errors, topics), "group")
    )  # type: ignore[arg-type] – a double
    return found


@pytest.mark.parametrize("errors", [[], [LOADING], [LOADING] * 3])
def test_offsets_are_awaited_while_the_coordinator_loads(errors: list[int]) -> None:
    assert all_of(errors, ONE_OFFSET) == {SOURCE: OffsetAndMetadata(7, "m")}


def test_group_without_offsets_has_none() -> None:
    assert all_of([], []) == {}


def test_forbidden_request_is_an_error() -> None:
    with pytest.raises(GroupAuthorizationFailedError):
        all_of([REFUSED], ONE_OFFSET)


ORDERS_ID = bytes(range(248, 256)) + bytes(range(8))
ONE = struct.pack(">i", 1)
PARTITION = struct.pack(">hiii", 0, 0, 1, 0) + b"\x02" + ONE + b"\x02" + ONE + b"\x01\x00"
"""Partition 0 without an error: leader 1 in epoch 0, one replica in sync, none offline, no tags."""
ANSWER = (
    struct.pack(">i", 0)  # throttled
    + b"\x02"
    + struct.pack(">i", 1)
    + b"\x05host"
    + struct.pack(">i", 9092)
    + b"\x00\x00"  # one broker without a rack
    + b"\x08cluster"
    + struct.pack(">i", 1)
    + b"\x03"  # two topics
    + struct.pack(">h", 0)
    + b"\x07orders"
    + ORDERS_ID
    + b"\x00"
    + b"\x02"
    + PARTITION
    + struct.pack(">i", -1)
    + b"\x00"
    + struct.pack(">h", 3)
    + b"\x05gone"
    + bytes(16)
    + b"\x00"
    + b"\x01"
    + struct.pack(">i", -1)
    + b"\x00"
    + struct.pack(">i", -1)
    + b"\x00"
)
"""Response written by hand, after the message definition of Kafka (MetadataResponse.json) and KIP-482."""


def test_topic_ids_are_read_and_missing_topics_have_none() -> None:
    answer = MetadataResponse_v10.decode(ANSWER)
    assert answer.encode() == ANSWER
    assert ids_in(answer.to_object()["topics"]) == {"orders": ORDERS_ID.hex()}


@pytest.mark.parametrize(("error_code", "half"), [(3, 1), (0, 0)])
def test_error_or_empty_id_means_no_topic_id(error_code: int, half: int) -> None:
    assert ids_in([{"topic": "orders", "error_code": error_code, "id_high": half, "id_low": half}]) == {}


def test_request_for_topic_ids_creates_no_topics() -> None:
    [request] = [TopicIdsRequest(["orders"]).build(MetadataRequest_v10)]
    assert request.encode() == b"\x02" + bytes(16) + b"\x07orders\x00" + b"\x00\x00\x00" + b"\x00"


@pytest.mark.parametrize("versions", [{3: (0, 9)}, {3: (0, 5)}, {}])
async def test_broker_without_topic_ids_gives_none(versions: dict[int, tuple[int, int]]) -> None:
    class Old(Admin):
        def __init__(self) -> None:
            """Make no connection."""

        async def _send_request(self, request: Any, node_id: int | None = None) -> Any:
            assert request.prepare(versions)

    assert await Old().topic_ids(["orders"]) == {}


def test_broker_of_unknown_versions_is_not_asked_for_ids() -> None:
    with pytest.raises(IncompatibleBrokerVersion):
        TopicIdsRequest(["orders"]).prepare({})


ORDERS = TopicPartition("orders", 3)


@pytest.mark.parametrize(("found", "expected"), [(0, -1), (0, 0), (7, 7), (9, 7)])
def test_records_continue_where_the_last_transaction_ended_or_later(found: int, expected: int) -> None:
    check_order(ORDERS, found, expected)


def test_record_from_before_a_partition_grew_is_refused() -> None:
    with pytest.raises(OffsetOutOfRangeError, match="orders-3 went back from 7 to 0"):
        check_order(ORDERS, 0, 7)


@with_rows
def test_source_topic_with_another_id_is_refused(source: int, known: str, found: str, is_refused: bool) -> None:
    with pytest.raises(SourceRecreated, match="orders was deleted") if is_refused else nullcontext():
        check_source("orders", DatabasePosition(source=source, source_id=known), found)
