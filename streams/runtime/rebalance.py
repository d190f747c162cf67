"""A rebalance, as a worker goes through it: partitions that stay its own go on working.

The protocol is Kafka's eager one, in which all members ask to join before any of them knows what it keeps. They need
not stop for it: whoever opens a partition fences its earlier owner, and TxnOffsetCommit as aiokafka sends it carries no
generation of the group. Only partitions whose records are handled at least once are released first: their records in
hand would be handled again elsewhere.
"""

import time
from collections.abc import Iterable
from typing import Any

import structlog
from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from faust.types.tuples import TP

log = structlog.get_logger()

HANDOVER_SECONDS = 1.0
"""Time to close a partition that may have another owner: a begun batch is seldom finished then, as that one ends it."""


NO_GENERATION = -1


def assignor_of_its_own(*, sticky: bool) -> type[AbstractPartitionAssignor]:
    """Return the assignor of one consumer: a class of its own, because aiokafka keeps a member's claims on the class.

    Partitions with state stay with their worker as far as balance allows. Without state they are shared out by turns:
    the sticky assignor balances all topics together, and would give one of two workers all of the first topic.
    """
    return type("Assignor", (StickyPartitionAssignor if sticky else RoundRobinPartitionAssignor,), {})


class KeptPositions(SubscriptionState):
    """aiokafka's state of a subscription, whose partitions keep their positions over a rebalance.

    aiokafka itself returns no record while one is under way, and forgets every position at its end.
    """

    def begin_reassignment(self) -> None:
        """Do nothing: until the next assignment the last one holds."""

    def assign_from_subscribed(self, assignment: Iterable[TopicPartition]) -> None:
        """Set the assignment; partitions of the last one keep what is known of them."""
        before = self.subscription.assignment
        super().assign_from_subscribed(assignment)
        after = self.subscription.assignment
        for source in after.tps & before.tps if before is not None else ():
            state = before.state_value(source)
            state._assignment = after  # noqa: SLF001 – aiokafka has no seam: it is pinned exactly
            after._tp_state[source] = state  # noqa: SLF001 – see above


class RebalanceListener(ConsumerRebalanceListener):
    """Gives up what was given away, and opens what is new; each partition recovers by itself after it."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._began = time.monotonic()
        self._generation = NO_GENERATION

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Prepare for a rebalance: any partition may move in it."""
        consumer, app = self._consumer, self._consumer.app
        self._began = time.monotonic()
        consumer.in_group.clear()
        if consumer.works_on:
            app.on_rebalance_start()
            # one that is being opened now might fence its next owner
            await consumer.release([s for s, p in consumer.partitions.items() if not p.ready], HANDOVER_SECONDS)
            return
        # the agent skips what it has not begun: the partition and its state are about to be closed
        app.consumer_generation_id += 1
        await consumer.release(consumer.partitions, app.engine.revoke_drain_seconds)
        app.on_rebalance_start()
        await consumer.on_partitions_revoked({TP(*source) for source in revoked})

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Take up the new assignment."""
        consumer, app = self._consumer, self._consumer.app
        sources = set(assigned)
        kept = consumer.partitions.keys() & sources if self._follows_the_last_generation() else set()
        left, new = consumer.partitions.keys() - kept, sources - kept
        consumer.kafka.pause(*new)
        if left:
            await consumer.release(left, min(HANDOVER_SECONDS, app.engine.revoke_drain_seconds))
            await app.on_partitions_revoked.send({TP(*source) for source in left})
        await consumer.on_partitions_assigned({TP(*source) for source in sources}, app.consumer_generation_id)
        consumer.resume_flow()
        if not app.flow_control.is_active():  # to resume it clears the agents' queues
            app.flow_control.resume()
        app.on_rebalance_end()
        consumer.take(new)
        seconds = time.monotonic() - self._began
        app.engine_metrics.rebalanced(seconds)
        numbers = {"kept": len(kept), "opened": len(new), "closed": len(left)}
        log.info("rebalanced", app=app.conf.id, seconds=round(seconds, 3), **numbers)

    def _follows_the_last_generation(self) -> bool:
        """Note the group's generation; return whether no generation was missed, in which others had our partitions."""
        consumer, before = self._consumer, self._generation
        self._generation = int(consumer.kafka._coordinator.generation)  # noqa: SLF001 – aiokafka has no seam: it is pinned exactly
        if issubclass(consumer.assignor, StickyPartitionAssignor):
            consumer.assignor.on_generation_assignment(self._generation)  # aiokafka itself never calls it
        return before != NO_GENERATION and self._generation == before + 1
