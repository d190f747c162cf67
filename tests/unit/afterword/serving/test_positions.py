"""Ids of streamed events keep the offset of every partition."""

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from afterword.serving.feed import PositionInvalid, offsets_of, position_id

TOPICS = ("a", "b", "c")
offsets = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 20)), st.integers(0, 10**18 - 1), max_size=20
)


@given(offsets)
def test_offsets_come_back(found: dict[TopicPartition, int]) -> None:
    back = offsets_of(TOPICS, position_id(TOPICS, found))
    assert {tp: offset for tp, offset in back.items() if offset} == {tp: o for tp, o in found.items() if o}


@given(st.text() | st.binary().map(bytes.hex))
def test_anything_else_is_read_or_refused(text: str) -> None:
    try:
        found = offsets_of(TOPICS, text)
    except PositionInvalid:
        return
    assert offsets_of(TOPICS, position_id(TOPICS, found)) == found


@pytest.mark.parametrize(
    "text", ["", "!", ";", ";;;", "1,;;", "1;;2;", "-1;;", "1 ;;", "٣;;", "9" * 19 + ";;", "1," * 9000 + ";;"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(PositionInvalid):
        offsets_of(TOPICS, text)


def test_an_id_of_24_partitions_is_short() -> None:
    every = {TopicPartition(topic, n): 10_000_000 for topic in TOPICS for n in range(8)}
    assert len(position_id(TOPICS, every)) <= 220
