"""The segmenter on its engine, in thousands of histories in which everything that can fail does."""

import pytest
from aiokafka.structs import OffsetAndMetadata
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from faust_eos.errors import ChangelogLost, EngineError, StateLost
from tests.model.machine import MOST_STEPS
from tests.model.profiles import profile
from tests.model.segmenter_machine import AgentsMachine, DamagedMachine, SegmenterMachine
from tests.model.segmenter_oracle import check
from tests.model.segmenting import SECOND, SOURCE, World, changelogs, copied
from tests.unit.segmenter.chat import says

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


def go_on_until(world: World, call: str) -> None:
    for _ in range(MOST_STEPS):
        found = world.network.next_call()
        if found is not None and found.name == call:
            return
        world.network.step()
    raise AssertionError(f"no call of {call}")


def test_overtaken_owner_does_not_mistake_newer_commits_for_loss() -> None:
    world = World(2)
    world.take(0)
    world.take(1)
    for call in ("open", "end_offsets", "committed"):
        go_on_until(world, call)
    slow, fast = world.workers
    if world.network.next_call().process is fast:
        slow, fast = fast, slow
    slow.frozen = True  # before it learns how far the group is
    world.produce(says("a", "b"))
    go_on(world, 60)
    assert world.broker.offsets == {SOURCE: OffsetAndMetadata(2, "partitions=1")}
    slow.frozen = False
    go_on(world, 60)
    errors = [worker.error for worker in world.workers]
    world.close()
    assert errors == [None, None]


def test_worker_suspended_while_recovering_uses_no_overtaken_state() -> None:
    world = World(2)
    first, second = world.workers
    world.take(0)
    world.produce(says("a", "b", "c"))
    go_on(world, 60)
    second.disk = copied(first.disk)
    world.produce(says(*"defghijklm"))
    go_on(world, 60)
    world.take(1)
    go_on_until(world, "end_offsets")
    second.frozen = True
    first.revoke(world.loop, 0)
    world.true_ms += 25 * 3600 * SECOND
    for changelog in changelogs().values():
        log = world.broker.log(changelog)
        log.compact(log.end, world.true_ms)
    second.frozen = False
    go_on(world, 60)
    check(world, second)
    world.close()


@pytest.mark.parametrize(
    ("tables", "error"),
    [({"messages"}, ChangelogLost), ({"conversations"}, ChangelogLost), (changelogs().keys(), StateLost)],
)
def test_worker_without_local_state_refuses_recreated_changelogs(tables: set[str], error: type[EngineError]) -> None:
    """If one changelog is left, its bookmark still names the other; if none is, the group's offset is ahead of both."""
    world = World(2)
    world.take(0)
    world.produce(says("a", "b", "c"))
    go_on(world, 60)
    world.kill(0)
    for table in tables:
        world.broker.delete_topic(changelogs()[table])
    world.take(1)
    go_on(world, 60)
    found = world.workers[1].error
    world.close()
    assert isinstance(found, error)


def go_on(world: World, steps: int) -> None:
    for _ in range(steps):
        world.network.step()
