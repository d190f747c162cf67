"""The summarizer on its engine, in thousands of histories in which everything that can fail does."""

import logging

import pytest
import structlog
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import OffsetAndMetadata
from hypothesis.stateful import run_state_machine_as_test
from structlog.testing import capture_logs

from tests.model.profiles import profile
from tests.model.summarizer_machine import SummarizerMachine
from tests.model.summarizing import SOURCE, World

pytestmark = pytest.mark.timeout(1200)  # this takes half a minute; shrinking a failed history takes minutes


def test_each_episode_is_stored_once_and_announced_once() -> None:
    run_state_machine_as_test(SummarizerMachine, settings=profile())


def at_rest(world: World) -> list[int]:
    """Handle everything; return the ordinals that a reader of committed records sees."""
    for _ in range(400):
        world.network.step()
    assert [worker.error for worker in world.workers] == [None]
    return [summary.ordinal for summary in world.announced]


def test_failed_commit_is_repeated_and_outputs_come_once() -> None:
    """Two cases: the commit was not done, or it was done but the answer was lost."""
    for done in (False, True):
        world = World(1)
        world.take(0)
        world.close_episode("a")
        while (call := world.network.next_call()) is None or call.name != "commit":
            world.network.step()
        world.network.fail(call, KafkaConnectionError(), after=done)
        world.loop.run_ready()
        assert at_rest(world) == [1]
        world.close()


def test_group_with_plain_offsets_continues() -> None:
    world = World(1)
    for _ in range(3):
        world.close_episode("a")
    world.broker.offsets[SOURCE] = OffsetAndMetadata(2, "")
    world.take(0)
    assert at_rest(world) == [3]
    world.close()


def test_unreadable_progress_costs_repeats_and_is_logged() -> None:
    world = World(1)
    for conversation in "abc":
        world.close_episode(conversation)
    world.broker.offsets[SOURCE] = OffsetAndMetadata(1, "eos1.00000000" + "Bg")
    world.take(0)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # else there are none here
    with capture_logs() as logs:
        for _ in range(400):
            world.network.step()
    assert sorted(summary.conversation_id for summary in world.announced) == ["b", "c"]
    assert [line["partition"] for line in logs if line["event"] == "progress_refused"] == ["episode.closed-0"]
    world.close()
