"""The summarizer on its engine, in thousands of histories in which everything that can fail does."""

from hypothesis.stateful import run_state_machine_as_test

from tests.model.profiles import profile
from tests.model.summarizer_machine import SummarizerMachine


def test_whatever_happens_each_episode_is_stored_once_and_announced_before_its_offset_is_committed() -> None:
    run_state_machine_as_test(SummarizerMachine, settings=profile())
