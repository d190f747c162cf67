"""What a worker does with its partitions in a rebalance, and what aiokafka remembers of them."""

import asyncio
from collections.abc import Collection, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError

from afterword.streams.runtime.rebalance import HANDOVER_SECONDS, KeptPositions, RebalanceListener

DRAIN_SECONDS = 10.0
A, B, C = (TopicPartition("in", number) for number in range(3))


async def test_positions_are_kept_over_a_rebalance_and_records_given_out_during_it() -> None:
    state = KeptPositions()
    state.subscribe({"in"})
    assert state.reassignment_in_progress, "there is nothing yet"
    state.assign_from_subscribed({A, B})
    state.seek(A, 7)
    state.seek(B, 8)
    state.pause(B)
    before = state.subscription.assignment
    state.begin_reassignment()
    assert not state.reassignment_in_progress
    assert before.active
    state.assign_from_subscribed({B, C})
    after = state.subscription.assignment
    assert not before.active, "aiokafka fetches anew"
    assert (after.state_value(B).position, after.state_value(B).paused) == (8, True)
    assert not after.state_value(C).has_valid_position
    after.state_value(B).fetch_committed()
    assert after.commit_refresh_needed.is_set()
    assert state.assigned_partitions() == {B, C}
    with pytest.raises(IllegalStateError):
        state.seek(A, 9)


async def test_open_partitions_are_left_at_work_and_others_wait_for_the_assignment() -> None:
    consumer = Worker({A: True, B: False})
    listener = RebalanceListener(consumer)
    await listener.on_partitions_revoked({A, B})
    assert not consumer.in_group.is_set()
    assert consumer.released == [({B}, HANDOVER_SECONDS)]
    await listener.on_partitions_assigned({A, B})
    assert consumer.released == [({B}, HANDOVER_SECONDS)]
    assert consumer.taken == [{B}]
    assert consumer.paused == {B}
    assert consumer.app.consumer_generation_id == 0, "the agent skips nothing"
    assert consumer.app.flow == ["resumed"], "only when it was suspended, as before the first assignment"


async def test_what_is_given_away_is_closed_before_anything_is_opened() -> None:
    consumer = Worker({A: True, B: True}, flowing=True)
    await RebalanceListener(consumer).on_partitions_assigned({B, C})
    assert consumer.released == [({A}, HANDOVER_SECONDS)]
    assert consumer.told == [{A}], "the app is told of it"
    assert consumer.taken == [{C}]
    assert consumer.app.flow == [], "to resume it would clear the agent's queue"


async def test_after_a_missed_generation_every_partition_is_opened_again() -> None:
    consumer = Worker({A: True, B: True}, flowing=True)
    consumer.assignor.unbroken = False
    await RebalanceListener(consumer).on_partitions_assigned({A, B})
    assert consumer.released == [({A, B}, HANDOVER_SECONDS)]
    assert consumer.taken == [{A, B}]


async def test_records_that_would_be_handled_twice_are_finished_before_a_rebalance() -> None:
    consumer = Worker({A: True, B: True}, flowing=True)
    consumer.works_on = False
    listener = RebalanceListener(consumer)
    await listener.on_partitions_revoked({A, B})
    assert consumer.released == [({A, B}, DRAIN_SECONDS)]
    assert consumer.revoked == [{A, B}]
    assert consumer.app.consumer_generation_id == 1
    await listener.on_partitions_assigned({A, C})
    assert consumer.taken == [{A, C}]
    assert consumer.told == []


class Worker:
    """The engine's consumer, as a listener uses it. `partitions`: whether they are open."""

    def __init__(self, partitions: dict[TopicPartition, bool], *, flowing: bool = False) -> None:
        self.partitions = {source: SimpleNamespace(ready=ready) for source, ready in partitions.items()}
        self.in_group = asyncio.Event()
        self.works_on = True
        self.assignor = SimpleNamespace(unbroken=True, standbys=frozenset())
        self.paused: set[TopicPartition] = set()
        self.released: list[tuple[set[TopicPartition], float]] = []
        self.taken: list[set[TopicPartition]] = []
        self.revoked: list[set[Any]] = []
        self.told: list[set[Any]] = []
        self.kafka = SimpleNamespace(pause=lambda *sources: self.paused.update(sources))
        self.app = App(self, flowing)

    async def release(self, sources: Iterable[TopicPartition], within_seconds: float) -> None:
        gone = set(sources)
        if gone:
            self.released.append((gone, within_seconds))
        for source in gone:
            del self.partitions[source]

    async def stop_standbys(self, but: Collection[TopicPartition]) -> None:
        assert but is self.assignor.standbys
        assert not self.taken, "what is to be opened may be open as a standby"

    async def on_partitions_revoked(self, revoked: set[Any]) -> None:
        self.revoked.append(revoked)

    async def on_partitions_assigned(self, assigned: set[Any], _generation: int) -> None:
        assert {A, B, C} >= assigned

    def resume_flow(self) -> None: ...

    def take(self, sources: Iterable[TopicPartition]) -> None:
        self.taken.append(set(sources))
        self.in_group.set()


class App:
    """Faust's app, as a listener uses it."""

    def __init__(self, worker: Worker, flowing: bool) -> None:
        self.engine = SimpleNamespace(revoke_drain_seconds=DRAIN_SECONDS)
        self.conf = SimpleNamespace(id="app")
        self.engine_metrics = SimpleNamespace(rebalanced=lambda _: None)
        self.consumer_generation_id = 0
        self.flow: list[str] = []
        self.flow_control = SimpleNamespace(is_active=lambda: flowing, resume=lambda: self.flow.append("resumed"))
        self.on_partitions_revoked = SimpleNamespace(send=self._send)
        self._worker = worker

    async def _send(self, gone: set[Any]) -> None:
        self._worker.told.append(gone)

    def on_rebalance_start(self) -> None: ...

    def on_rebalance_end(self) -> None: ...
