import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.llm import Span
from benchmarks.schedule import Call, busy_share, calls_of, ideal, last_start
from benchmarks.slots import waits

CALLS = st.lists(st.builds(Call, st.sampled_from("abcd"), st.sampled_from([0.5, 1.0, 10.0])), min_size=1, max_size=30)


def test_a_free_slot_takes_the_first_call_whose_conversation_has_none_running() -> None:
    spans = ideal([Call("a", 2), Call("a", 1), Call("b", 1), Call("c", 1)], slots=2)
    assert spans == [Span("a", 0, 2), Span("b", 0, 1), Span("c", 1, 2), Span("a", 2, 3)]


@given(CALLS, st.integers(1, 4))
def test_an_ideal_schedule_has_every_call_once_and_never_too_many_nor_two_of_one_conversation(
    calls: list[Call], slots: int
) -> None:
    spans = ideal(calls, slots)
    assert sorted(calls_of(spans)) == sorted(calls)
    for span in spans:
        running = [other for other in spans if other.began <= span.began < other.ended]
        assert len(running) <= slots
        assert len({other.conversation for other in running}) == len(running)


def test_a_slot_is_busy_while_a_call_is_in_it() -> None:
    spans = [Span("a", 10, 14), Span("b", 10, 11), Span("c", 12, 16)]
    assert busy_share(spans, slots=2, until=14) == pytest.approx((4 + 1 + 2) / 8)


def test_work_is_queued_until_the_last_call_of_a_conversation_that_is_not_slow() -> None:
    assert last_start([Span("a", 1, 2), Span("slow", 5, 15), Span("b", 3, 4)], {"slow"}) == 3


def test_an_episode_waits_until_the_call_that_is_its_conversations_next() -> None:
    spans = [Span("b", 2.5, 3), Span("a", 4, 5), Span("a", 1.5, 2)]
    assert waits([("a", 1.0), ("b", 2.0), ("a", 3.0)], spans) == pytest.approx([0.5, 1.0, 0.5])
