"""A worker's partitions in a rebalance, and what aiokafka remembers of them."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import IllegalStateError

from faust_eos.drivers import HANDOVER_SECONDS, KeptPositions, RebalanceListener, assignor_of_its_own

DRAIN_SECONDS = 10.0
A, B, C = (TopicPartition("in", number) for number in range(3))


async def test_positions_survive_a_rebalance_and_records_delivered_during_it() -> None:
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


async def test_open_partitions_keep_working_while_others_await_the_assignment() -> None:
    consumer, listener = await a_member({A: True, B: False})
    await listener.on_partitions_revoked({A, B})
    assert not consumer.in_group.is_set()
    assert consumer.released == [({B}, HANDOVER_SECONDS)]
    await consumer.assigned(listener, {A, B})
    assert consumer.released == [({B}, HANDOVER_SECONDS)]
    assert consumer.taken == [{B}]
    assert consumer.paused == {B}
    assert consumer.app.consumer_generation_id == 0, "the agent skips nothing"
    assert consumer.app.flow == ["resumed"], "only when it was suspended, as before the first assignment"


async def test_revoked_partitions_close_before_anything_opens() -> None:
    consumer, listener = await a_member({A: True, B: True}, flowing=True)
    await consumer.assigned(listener, {B, C})
    assert consumer.released == [({A}, HANDOVER_SECONDS)]
    assert consumer.told == [{A}], "the app is told of it"
    assert consumer.taken == [{C}]
    assert consumer.app.flow == [], "to resume it would clear the agent's queue"


async def test_records_at_risk_of_repeats_finish_before_a_rebalance() -> None:
    consumer, listener = await a_member({A: True, B: True}, flowing=True)
    consumer.works_on = False
    await listener.on_partitions_revoked({A, B})
    assert consumer.released == [({A, B}, DRAIN_SECONDS)]
    assert consumer.revoked == [{A, B}]
    assert consumer.app.consumer_generation_id == 1
    await consumer.assigned(listener, {A, C})
    assert consumer.taken == [{A, C}]
    assert consumer.told == []


async def test_stateful_partitions_stay_and_the_later_claim_wins() -> None:
    consumer, listener = await a_member({A: True, B: True}, flowing=True)
    stale = assignor_of_its_own(sticky=True)
    stale.on_assignment(assignment_of(A, B, C))
    stale.on_generation_assignment(1)
    consumer.assignor.on_assignment(assignment_of(B, C))
    await consumer.assigned(listener, {B, C})
    members = {"a": stale.metadata(["in"]), "b": consumer.assignor.metadata(["in"])}
    shared = consumer.assignor.assign(Cluster({"in": 3}), members)
    assert {name: shared[name].partitions() for name in members} == {"a": [A], "b": [B, C]}


async def test_workers_without_state_share_each_topic_equally() -> None:
    """The sticky assignor would move all of one topic to the second member."""
    first, second = assignor_of_its_own(sticky=False), assignor_of_its_own(sticky=False)
    topics = ["closed", "retry"]
    alone = first.assign(Cluster(dict.fromkeys(topics, 4)), {"a": first.metadata(topics)})
    first.on_assignment(alone["a"])
    members = {"a": first.metadata(topics), "b": second.metadata(topics)}
    shared = first.assign(Cluster(dict.fromkeys(topics, 4)), members)
    for name in members:
        assert Counter(source.topic for source in shared[name].partitions()) == {"closed": 2, "retry": 2}


def test_two_consumers_of_a_process_keep_separate_assignments() -> None:
    first, second = assignor_of_its_own(sticky=True), assignor_of_its_own(sticky=True)
    first.on_assignment(assignment_of(A))
    assert first.metadata(["in"]).user_data
    assert not second.metadata(["in"]).user_data


def assignment_of(*sources: TopicPartition) -> ConsumerProtocolMemberAssignment:
    return ConsumerProtocolMemberAssignment(0, [("in", [source.partition for source in sources])], b"")


class Cluster:
    """aiokafka's metadata, as assignors use it. `topics` has the number of partitions of each topic."""

    def __init__(self, topics: dict[str, int]) -> None:
        self._topics = topics

    def topics(self) -> set[str]:
        return set(self._topics)

    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(self._topics[topic]))


async def a_member(
    partitions: dict[TopicPartition, bool], *, flowing: bool = False
) -> "tuple[Worker, RebalanceListener]":
    """Return a worker that was assigned these partitions in the last generation, and its listener."""
    consumer = Worker({}, flowing=True)
    listener = RebalanceListener(consumer)
    await listener.on_partitions_assigned(partitions)
    consumer.start_over(partitions, flowing)
    return consumer, listener


class Worker:
    """Stands in for the engine's consumer in a listener. `partitions` maps each partition to whether it is open."""

    def __init__(self, partitions: dict[TopicPartition, bool], *, flowing: bool = False) -> None:
        self.partitions = {source: SimpleNamespace(ready=ready) for source, ready in partitions.items()}
        self.in_group = asyncio.Event()
        self.works_on = True
        self.assignor = assignor_of_its_own(sticky=True)
        self.paused: set[TopicPartition] = set()
        self.released: list[tuple[set[TopicPartition], float]] = []
        self.taken: list[set[TopicPartition]] = []
        self.revoked: list[set[Any]] = []
        self.told: list[set[Any]] = []
        self.coordinator = SimpleNamespace(generation=1)
        self.kafka = SimpleNamespace(pause=lambda *sources: self.paused.update(sources), _coordinator=self.coordinator)
        self.app = App(self, flowing)

    def start_over(self, partitions: dict[TopicPartition, bool], flowing: bool) -> None:
        """Forget what has happened. `partitions` is as in the constructor."""
        self.partitions = {source: SimpleNamespace(ready=ready) for source, ready in partitions.items()}
        self.app = App(self, flowing)
        self.paused.clear()
        self.taken.clear()

    async def assigned(self, listener: RebalanceListener, sources: set[TopicPartition]) -> None:
        self.coordinator.generation += 1
        await listener.on_partitions_assigned(sources)

    async def release(self, sources: Iterable[TopicPartition], within_seconds: float) -> None:
        gone = set(sources)
        if gone:
            self.released.append((gone, within_seconds))
        for source in gone:
            del self.partitions[source]

    async def on_partitions_revoked(self, revoked: set[Any]) -> None:
        self.revoked.append(revoked)

    async def on_partitions_assigned(self, assigned: set[Any], _generation: int) -> None:
        assert {A, B, C} >= assigned

    def resume_flow(self) -> None: ...

    def take(self, sources: Iterable[TopicPartition]) -> None:
        self.taken.append(set(sources))
        self.in_group.set()


class App:
    """Stands in for Faust's app in a listener."""

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
