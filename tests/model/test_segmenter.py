"""The segmenter on its engine, in thousands of histories in which everything that can fail does."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.profiles import profile
from tests.model.segmenter_machine import AgentsMachine, DamagedMachine, SegmenterMachine

pytestmark = pytest.mark.timeout(1200)  # this takes half a minute; shrinking a failed history takes minutes


def test_committed_episodes_and_state_always_equal_the_log() -> None:
    run_state_machine_as_test(SegmenterMachine, settings=profile())


def test_each_agents_episodes_and_state_always_equal_the_log() -> None:
    """Only a quarter of the histories: the engine is the same, and the rules have property tests of their own."""
    run_state_machine_as_test(AgentsMachine, settings=settings(profile(), max_examples=profile().max_examples // 4))


def test_worker_never_continues_with_state_unlike_the_log() -> None:
    """Only a quarter of the histories, because a history soon ends after the damage."""
    run_state_machine_as_test(DamagedMachine, settings=settings(profile(), max_examples=profile().max_examples // 4))


def test_stop_between_records_meets_no_deadline_they_would_move() -> None:
    """Found by the first of the machines: the agent fails on two records, and between the two there is a stop."""
    told = SegmenterMachine()
    told.begin()
    told.clocks_jump(skew=-3600)
    told.time_passes_and_somebody_speaks(when=0, seconds=1, said=[("message", "b", 0, 0)])
    told.produce(when=0, said=3 * [("message", "a", 0, 0)], again=False)
    told.go_on(count=23)
    told.clocks_jump(skew=0)
    told.take(when=0, number=2)
    told.revoke(when=0, number=0, within=0.0)
    told.keep_talking(when=0, one=("message", "a", 0, 0), more=[("message", "a", 0, 0)])
    told.the_agent_fails(number=2, times=1)
    told.go_on_until("offsets")
    told.teardown()


def test_long_messages_count_all_their_tokens() -> None:
    """Found by the first of the machines: the oracle counted characters, of which four such messages have 4,000."""
    told = SegmenterMachine()
    told.begin()
    told.produce(when=0, said=4 * [("large", "a", 0, 0)], again=False)
    told.teardown()
