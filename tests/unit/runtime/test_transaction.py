"""The producer of a partition: its name, and how it is opened."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from hypothesis import example, given
from hypothesis import strategies as st

from afterword.streams.runtime.options import Options
from afterword.streams.runtime.transaction import TransactionalProducer, earlier_transactional_id, transactional_id

topics = st.text("ab0.-_", min_size=1, max_size=8)
"""Names of the characters that Kafka allows: letters, digits, full stop, hyphen, underscore."""
apps = st.text("ab0.-_~", min_size=1, max_size=8)
writers = st.tuples(apps, st.builds(TopicPartition, topics, st.integers(0, 20)))


class Unstartable:
    """Producer like aiokafka's when a broker that just comes up names no broker."""

    async def start(self) -> None:
        raise AssertionError("Did we not perform bootstrap?")


async def test_a_broker_that_names_no_broker_is_one_that_cannot_be_reached_yet() -> None:
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
def test_the_rights_of_an_apps_user_cover_its_transactional_ids(writer: tuple[str, TopicPartition]) -> None:
    prefix = f"{writer[0]}-"
    assert transactional_id(*writer).startswith(prefix)
    assert earlier_transactional_id(*writer).startswith(prefix)


@given(app=apps, topic=st.text("ab0._", min_size=1), partition=st.integers(0, 20))
def test_a_topic_without_hyphens_keeps_the_id_of_earlier_versions(app: str, topic: str, partition: int) -> None:
    source = TopicPartition(topic, partition)
    assert transactional_id(app, source) == earlier_transactional_id(app, source)
