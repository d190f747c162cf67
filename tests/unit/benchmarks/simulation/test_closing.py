"""From messages to episodes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation.closing import Episodes, Rules, close

RULES = Rules(trigger=10, idle_seconds=300.0, shift_chance=0.0)


def closed(whose: list[int], rules: Rules = RULES, tick: float = 0.0) -> Episodes:
    conversation = np.array(whose, dtype=np.int64)
    arrived = np.arange(len(whose), dtype=np.float64)
    return close(conversation, arrived, arrived + 0.5, rules, np.random.default_rng(1), tick)


@settings(deadline=None)
@given(
    whose=st.lists(st.integers(0, 5), max_size=200), trigger=st.integers(1, 12), shifts=st.sampled_from([0.0, 0.1, 0.9])
)
def test_every_message_is_in_one_episode_of_its_conversation(whose: list[int], trigger: int, shifts: float) -> None:
    episodes = closed(whose, Rules(trigger, 300.0, shifts))
    for conversation in set(whose):
        assert episodes.size[episodes.conversation == conversation].sum() == whose.count(conversation)
    assert np.all(episodes.size >= 1)
    assert np.all(episodes.size <= trigger)
    assert np.all(episodes.closed >= episodes.due)
    assert np.all(np.diff(episodes.closed) >= 0)


def test_the_tenth_message_closes_and_silence_closes_the_rest() -> None:
    episodes = closed([7] * 13)
    assert episodes.size.tolist() == [10, 3]
    assert episodes.due.tolist() == [9.0, 12.0 + 300.0]
    assert episodes.closed.tolist() == [9.5, 312.0]


def test_topic_shifts_cut_what_closes_together_into_episodes_of_two_messages_at_least() -> None:
    episodes = closed([7] * 10, Rules(10, 300.0, 1.0))
    assert episodes.size.tolist() == [2] * 5
    assert set(episodes.closed) == {9.5}
