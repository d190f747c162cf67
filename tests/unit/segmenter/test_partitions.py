"""Conversations that producers put elsewhere than the standard partitioner are counted, and told of once."""

import pytest
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from afterword.streams.segmenter.agent import PartitionerCheck, standard_partition
from tests.unit.segmenter.chat import Chat, flush, limits, say, says

KEYS = [b"c%d" % number for number in range(100)]


@given(st.binary(min_size=1), st.integers(1, 100))
def test_the_standard_partition_is_the_one_of_our_own_producers(key: bytes, partitions: int) -> None:
    everywhere = list(range(partitions))
    assert standard_partition(key, partitions) == DefaultPartitioner()(key, everywhere, everywhere)


@pytest.mark.parametrize(
    ("key", "murmur2"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"abc", 479470107), (b"a-little-bit-long-string", -985981536)],
)
def test_it_is_that_of_javas_client(key: bytes, murmur2: int) -> None:
    """The hashes are of Kafka's UtilsTest.testMurmur2."""
    assert standard_partition(key, 1000) == (murmur2 & 0x7FFFFFFF) % 1000


def test_conversations_elsewhere_are_counted_and_a_partition_is_told_of_once() -> None:
    placement = PartitionerCheck()
    right = [key for key in KEYS if standard_partition(key, 4) == 2]
    wrong = [key for key in KEYS if standard_partition(key, 4) != 2]
    with capture_logs() as logs:
        assert placement.elsewhere(right, "messages", 2, 4) == 0
        assert placement.elsewhere([*right, *wrong], "messages", 2, 4) == len(wrong)
        assert placement.elsewhere(wrong, "messages", 2, 4) == len(wrong)
        assert placement.elsewhere(right, "messages", 1, 4) == len(right)
    assert [(line["event"], line["partition"]) for line in logs] == [
        ("conversation_in_another_partition", 2),
        ("conversation_in_another_partition", 1),
    ]
    assert logs[0]["standard_partition"] == standard_partition(wrong[0], 4)


@pytest.mark.parametrize("partitions", [None, 0, 1])
def test_nothing_is_elsewhere_with_one_partition_or_while_their_number_is_not_known(partitions: int | None) -> None:
    assert PartitionerCheck().elsewhere(KEYS, "messages", 0, partitions) == 0


def test_only_the_first_message_of_a_conversation_is_looked_at() -> None:
    chat = Chat(limits())
    assert chat.process([flush(), *says("a", "b"), say("x", conversation_id="other")]).new_conversation_keys == [
        b"c",
        b"other",
    ]
    assert chat.process([*says("d"), say("y", conversation_id="third")]).new_conversation_keys == [b"third"]
