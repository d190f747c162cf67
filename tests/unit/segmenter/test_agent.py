"""The segmenter's agent: what it counts, and partitions whose conversations belong elsewhere."""

from collections import Counter

import pytest
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from afterword.streams.segmenter.agent import count, standard_partition
from afterword.streams.segmenter.processor import Outcome
from afterword.streams.telemetry.metrics import Metrics
from tests.unit.segmenter.chat import Chat, flush, limits, say, says
from tests.unit.segmenter.test_slices import Deployed

NAMES = [f"c{number}" for number in range(100)]


@given(st.binary(min_size=1), st.integers(1, 100))
def test_standard_partition_is_our_producers(key: bytes, partitions: int) -> None:
    everywhere = list(range(partitions))
    assert standard_partition(key, partitions) == DefaultPartitioner()(key, everywhere, everywhere)


@pytest.mark.parametrize(
    ("key", "murmur2"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"abc", 479470107), (b"a-little-bit-long-string", -985981536)],
)
def test_standard_partition_is_the_java_clients(key: bytes, murmur2: int) -> None:
    """The hashes are of Kafka's UtilsTest.testMurmur2."""
    assert standard_partition(key, 1000) == (murmur2 & 0x7FFFFFFF) % 1000


async def test_partition_of_foreign_conversations_is_logged_once() -> None:
    deployed = Deployed(limits())
    wrong = [name for name in NAMES if standard_partition(name.encode(), 4) != 3]
    right = [name for name in NAMES if name not in wrong]
    with capture_logs() as logs:
        await deployed.hear(*[say("a", conversation_id=name) for name in right])
        assert logs == []
        await deployed.hear(*[say("a", conversation_id=name) for name in wrong[1:]])
        await deployed.hear(say("a", conversation_id=wrong[0]))
    assert [(line["event"], line["partition"], line["standard_partition"]) for line in logs] == [
        ("conversation_in_another_partition", 3, standard_partition(wrong[1].encode(), 4))
    ]


@pytest.mark.parametrize("partitions", [None, 0])
async def test_unknown_partition_count_makes_nothing_foreign(partitions: int | None) -> None:
    deployed = Deployed(limits(trigger=1), partitions=partitions)
    with capture_logs() as logs:
        await deployed.hear(say("a"))
    assert (deployed.messages, logs) == ([("c", "a")], [])


def test_only_a_conversations_first_message_is_checked() -> None:
    chat = Chat(limits())
    assert chat.process([flush(), *says("a", "b"), say("x", conversation_id="other")]).new_conversation_keys == [
        b"c",
        b"other",
    ]
    assert chat.process([*says("d"), say("y", conversation_id="third")]).new_conversation_keys == [b"third"]


def test_outcome_is_added_to_the_metrics() -> None:
    metrics = Metrics("segmenter", "1.2.3")
    outcome = Outcome(
        messages=5,
        duplicates=2,
        changed_repeats=1,
        skipped=1,
        amendments=1,
        dead_letters=Counter(too_large=3),
        episodes=Counter(idle=2, flush=1),
    )
    count(outcome, metrics)
    count(outcome, metrics)
    value = metrics.registry.get_sample_value
    by_outcome = {"taken": 10, "duplicate": 4, "changed_repeat": 2, "skipped": 2, "amendment": 2, "dead_letter": 6}
    assert {name: value("afterword_messages_total", {"outcome": name}) for name in by_outcome} == by_outcome
    assert value("afterword_dead_letters_total", {"stage": "segmenter", "error_type": "too_large"}) == 6
    assert value("afterword_episodes_closed_total", {"close_reason": "idle"}) == 4
