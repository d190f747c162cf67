"""Histories that the model check has found, told by themselves."""

from tests.model.machine import MOST_STEPS
from tests.model.segmenting import SOURCE, World
from tests.unit.segmenter.chat import says


def go_on_until(world: World, call: str) -> None:
    for _ in range(MOST_STEPS):
        found = world.network.next_call()
        if found is not None and found.name == call:
            return
        world.network.step()
    raise AssertionError(f"no call of {call}")


def test_an_owner_that_is_overtaken_while_it_recovers_does_not_take_the_newer_commits_for_lost_state() -> None:
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
    for _ in range(60):
        world.network.step()
    assert world.broker.offsets == {SOURCE: 2}
    slow.frozen = False
    for _ in range(60):
        world.network.step()
    errors = [worker.error for worker in world.workers]
    world.close()
    assert errors == [None, None]
