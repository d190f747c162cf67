"""The producer of a partition: its name, and how it is opened."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    InvalidTxnState,
    KafkaConnectionError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
)
from hypothesis import example, given
from hypothesis import strategies as st

from distributions.engine.tests.simulation.clients import Builder
from faust_eos.changelog import Bookmark
from faust_eos.errors import OutputMissing
from faust_eos.options import Options
from faust_eos.transaction import Output, Sent, TransactionalProducer, all_arrived, require_outputs, transactional_id

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
