"""A worker whose standbys are to be owners: when it asks for them, and that it is not ready before."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition

from afterword.streams.runtime.transport import Consumer

A, B, C = (TopicPartition("in", number) for number in range(3))


class Following(Consumer):
    """The engine's consumer without Faust, of an app without agents; its standbys are what is set."""

    def __init__(self, warming: set[TopicPartition]) -> None:
        self.asked = 0
        self.kafka = SimpleNamespace(_coordinator=SimpleNamespace(request_rejoin=self._ask))
        self.app = SimpleNamespace(conf=SimpleNamespace(id="app"), should_stop=False)
        self.assignor = SimpleNamespace(warming=frozenset(warming), standbys=frozenset())
        self.layouts = SimpleNamespace(grown=False)
        self.in_group = asyncio.Event()
        self.partitions = {}
        self._inherited = set()
        self.standbys = {source: Standing() for source in sorted(warming)}
        self.opened: set[TopicPartition] = set()
        self.take(())

    def _new_partition(self, source: TopicPartition) -> Any:
        return SimpleNamespace(ready=source in self.opened)

    def _ask(self) -> None:
        self.asked += 1


class Standing:
    """A standby as its consumer sees it."""

    def __init__(self) -> None:
        self.has_caught_up = self.has_failed = False
        self.task = SimpleNamespace(done=lambda: self.has_failed)

    async def stop(self) -> None:
        self.has_caught_up = False


@pytest.fixture
def worker() -> Following:
    return Following({A, B})


def test_a_rebalance_is_asked_for_once_when_the_last_of_them_has_caught_up(worker: Following) -> None:
    worker.standbys[A].has_caught_up = True
    worker.rejoin_when_warm()
    assert worker.asked == 0
    assert not worker.ready
    worker.standbys[B].has_caught_up = True
    worker.rejoin_when_warm()
    worker.rejoin_when_warm()
    assert worker.asked == 1
    assert worker.ready


def test_one_that_failed_holds_nobody_up_and_asks_for_nothing(worker: Following) -> None:
    worker.standbys[A].has_failed = True
    worker.rejoin_when_warm()
    assert not worker.ready
    worker.standbys[B].has_caught_up = True
    worker.rejoin_when_warm()
    assert (worker.asked, worker.ready) == (1, True)
    worker.assignor.warming = frozenset({A})
    worker.take(())
    assert (worker.asked, worker.ready) == (1, True)


def test_what_has_caught_up_during_a_rebalance_is_asked_for_after_it(worker: Following) -> None:
    worker.in_group.clear()
    for standby in worker.standbys.values():
        standby.has_caught_up = True
    worker.rejoin_when_warm()
    assert worker.asked == 0
    worker.take(())
    assert worker.asked == 1


async def test_a_partition_that_is_being_opened_is_held_if_its_standby_had_caught_up(worker: Following) -> None:
    """Else a rebalance in that moment would give it to a worker without its state."""
    worker.standbys[A].has_caught_up = True
    await worker.stop_standbys()
    worker.opened = {C}
    worker.take([A, B, C])
    assert worker.held() == {A, C}
    del worker.partitions[A]
    worker.take([])
    assert worker.held() == {C}
