"""Histories that the model check has found, or finds only by chance, as single tests."""

import pytest
from aiokafka.structs import OffsetAndMetadata

from faust_eos.errors import ChangelogLost, EngineError, StateLost
from tests.model.machine import MOST_STEPS
from tests.model.segmenter_oracle import check
from tests.model.segmenting import SECOND, SOURCE, World, changelogs, copied
from tests.unit.segmenter.chat import says


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
