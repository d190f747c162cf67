"""The engine as Faust sees it: a transport with the scheme `eos://`, including its consumer and its producer.

Faust handles group membership and the callbacks into the app; fetching and committing belong to the partitions.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import structlog
from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import ProducerClosed
from faust import current_event
from faust.exceptions import NotReady
from faust.transport import base
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import TP, RecordMetadata

from faust_eos.at_least_once import AtLeastOnce, AtLeastOncePartition, ConcurrentMessage
from faust_eos.batch import Batch, Batches, Headers, Output, current_batch
from faust_eos.database import Database, DeadlineOf, NoDatabase, StateMemory
from faust_eos.errors import AgentFailed, described
from faust_eos.exactly_once import ExactlyOncePartition
from faust_eos.options import LIFE_CYCLE, Clients

log = structlog.get_logger()

FETCH_MAX_WAIT_MS = 200
UNKNOWN_OFFSET = -1
"""Stands for the offset of a record in a batch, which has none before the commit."""

Partition = ExactlyOncePartition | AtLeastOncePartition
HANDOVER_SECONDS = 1.0
"""Time to close a partition that may already have another owner. A begun batch seldom finishes in it, because the new
owner ends its transaction."""


NO_GENERATION = -1


class Consumer(base.Consumer):
    """Faust's consumer, built on one aiokafka consumer and one task per partition."""

    logger = LIFE_CYCLE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.partitions: dict[TopicPartition, Partition] = {}
        self.tables_ready = asyncio.Event()
        self.kafka: Any = None
        self._was_assigned = False
        self.assignor = assignor_of_its_own(sticky=bool(self.app.tables))
        self.in_group = asyncio.Event()
        """Set while the worker is in its group and no rebalance is under way."""
        self.handled = 0
        """Number of finished records in all partitions (at-least-once)."""
        self._crashing: asyncio.Future[None] | None = None

    # -- life cycle

    async def on_start(self) -> None:
        conf = self.app.conf
        self.kafka = self.app.consumer_class(
            **self.kafka_settings(),
            group_id=conf.id,
            group_instance_id=conf.consumer_group_instance_id,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none",  # a position out of range is an error of its partition, never a silent jump
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            heartbeat_interval_ms=int(conf.broker_heartbeat_interval * 1000),
            rebalance_timeout_ms=int(conf.broker_rebalance_timeout * 1000),
            max_poll_interval_ms=int(conf.broker_max_poll_interval * 1000),
            fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
            max_partition_fetch_bytes=conf.consumer_max_fetch_size,
            partition_assignment_strategy=[self.assignor],
        )
        self.kafka._subscription = KeptPositions()  # noqa: SLF001 – aiokafka has no seam: it is pinned exactly
        await self.kafka.start()

    async def wait_empty(self) -> None:
        """Drain. The app calls this when it stops, before the agents are cancelled."""
        await self.release(self.partitions, self.app.engine.drain_seconds)

    async def on_stop(self) -> None:
        await self.release(self.partitions, 0)
        if self.kafka is not None:
            await self.kafka.stop()

    async def release(self, sources: Iterable[TopicPartition], within_seconds: float) -> None:
        """Release the partitions; work in flight is finished in time or dropped whole."""
        partitions = [self.partitions.pop(source) for source in list(sources)]
        await asyncio.gather(*[partition.stop(within_seconds) for partition in partitions])

    def take(self, sources: Iterable[TopicPartition]) -> None:
        """Open the partitions. Each recovers in its own task, so that none delays the rebalance."""
        self._was_assigned = True
        self.in_group.set()
        if not self.app.should_stop:
            for source in sources:
                self.partitions[source] = self._new_partition(source)

    def _new_partition(self, source: TopicPartition) -> Partition:
        schemas = [topic.schema for topic in self.app.topics if source.topic in topic.topics]
        for schema in schemas:
            if isinstance(schema, AtLeastOnce):
                return AtLeastOncePartition(self, source, schema)
            if isinstance(schema, Batches):
                return ExactlyOncePartition(self, source, schema)
        raise TypeError(f"topic {source.topic} needs schema=Batches() or schema=AtLeastOnce()")

    def on_partition_exit(self, task: "asyncio.Task[None]") -> None:
        """Stop the worker: a partition that ends by itself has met an error that starting over cannot fix."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.stop_worker(error)

    def stop_worker(self, error: BaseException) -> None:
        """Crash the app: the worker drains and exits with this error."""
        name = getattr(error, "error_type", type(error).__name__)
        log.error("partition_failed", stage="engine", error_type=name, error=described(error))
        self._crashing = asyncio.ensure_future(self.app.crash(error))

    async def on_task_error(self, exc: BaseException) -> None:
        """Fail the agent's batch, or stop the worker; Faust calls this in the task of an agent that raised."""
        batch, event = current_batch(), current_event()
        if event is not None and isinstance(event.message, ConcurrentMessage):
            # nothing else would finish the agent's record, and the offset would stand still unnoticed
            self.stop_worker(AgentFailed(where=str(event.message), cause=exc))
        elif batch is not None:
            batch.fail(exc)

    # -- for the partitions

    def kafka_settings(self) -> dict[str, Any]:
        """Return the arguments that every aiokafka client needs."""
        conf = self.app.conf
        return {
            "bootstrap_servers": driver.server_list(self.transport.url, self.transport.default_port),
            "client_id": conf.broker_client_id,
            "request_timeout_ms": int(conf.broker_request_timeout * 1000),
            **self.app.security,
        }

    def clients(self) -> Clients:
        return Clients(self.kafka_settings())

    @cached_property
    def _state_memory(self) -> StateMemory:
        return StateMemory(self.app.engine.state_memory_bytes)

    def open_database(self, where: str, deadlines: Mapping[str, DeadlineOf | None]) -> Database | NoDatabase:
        if not deadlines:
            return NoDatabase()
        path = self.app.conf.tabledir / where
        return Database(path, deadlines, memory=self._state_memory, clock=self.app.engine.clock)

    def databases(self) -> Iterator[Database]:
        """Yield the databases of the open partitions."""
        yield from (one.session.database for one in self.partitions.values() if one.session is not None)

    @property
    def joined(self) -> bool:
        return self.in_group.is_set()

    @property
    def works_on(self) -> bool:
        """True if partitions keep working during a rebalance instead of being released before it."""
        return not any(isinstance(partition, AtLeastOncePartition) for partition in self.partitions.values())

    @property
    def ready(self) -> bool:
        """True when the worker is in its group and every assigned partition is open; it may have none."""
        return self._was_assigned and all(partition.ready for partition in self.partitions.values())

    # -- for Faust

    async def subscribe(self, topics: Iterable[str]) -> None:
        self.kafka.subscribe(sorted(topics), listener=RebalanceListener(self))

    def assignment(self) -> set[TP]:
        return {TP(*source) for source in self.kafka.assignment()} if self.kafka else set()

    def topic_partitions(self, topic: str) -> int | None:
        return len(self.kafka.partitions_for_topic(topic) or ()) or None if self.kafka else None

    def highwater(self, tp: TP) -> int:
        return int(self.kafka.highwater(TopicPartition(*tp)) or 0)

    async def position(self, tp: TP) -> int | None:
        return int(await self.kafka.position(TopicPartition(*tp)))

    async def earliest_offsets(self, *tps: TP) -> Mapping[TP, int]:
        found = await self.kafka.beginning_offsets([TopicPartition(*tp) for tp in tps])
        return {TP(*source): offset for source, offset in found.items()}

    async def highwaters(self, *tps: TP) -> Mapping[TP, int]:
        found = await self.kafka.end_offsets([TopicPartition(*tp) for tp in tps])
        return {TP(*source): offset for source, offset in found.items()}

    def key_partition(self, topic: str, key: bytes | None, partition: int | None = None) -> int | None:
        return partition if partition is not None else self.app.producer.key_partition(topic, key).partition

    async def ends(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the partitions' end offsets; without any, only check that a broker answers. Raises: KafkaError."""
        if self.kafka is None:
            return {}
        asked = list(sources)
        if not asked:
            await self.kafka.topics()
        return dict(await self.kafka.end_offsets(asked)) if asked else {}

    async def create_topic(self, *args: Any, **kwargs: Any) -> None:
        await self.app.producer.create_topic(*args, **kwargs)

    # -- Faust's own fetching, acknowledging and committing, which are unused

    def close(self) -> None: ...

    async def commit(self, *_: Any, **__: Any) -> bool:
        return False

    async def verify_all_partitions_active(self) -> None: ...

    async def perform_seek(self) -> None: ...

    async def seek_to_committed(self) -> Mapping[TP, int]:
        return {}

    async def seek_wait(self, partitions: Mapping[TP, int]) -> None: ...

    async def _seek(self, partition: TP, offset: int) -> None: ...

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:  # noqa: ARG002 – the signature is Faust's
        return False

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> dict[TP, list[Any]]:  # noqa: ARG002 – the signature is Faust's
        return {}

    def _new_topicpartition(self, topic: str, partition: int) -> TP:
        return TP(topic, partition)

    def _to_message(self, tp: TP, record: Any) -> Any:
        raise NotImplementedError


class EngineProducer(driver.Producer):
    """Faust's producer. Inside an agent, a send joins the batch of its event; elsewhere it goes out at once.

    After a failed delivery, aiokafka's producer is replaced. It has given the failed records sequence numbers that the
    broker never saw, so everything that it sends to their partition afterwards would be out of order for ever.
    """

    logger = LIFE_CYCLE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._broken = False
        self._replacing = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()

    async def on_stop(self) -> None:
        await super().on_stop()
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    def _settings_extra(self) -> dict[str, Any]:
        return {"acks": "all", "enable_idempotence": True}

    def _settings_auth(self) -> Mapping[str, Any]:
        security: Mapping[str, Any] = self.app.security
        return security

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp: float | None,
        headers: Any,
        *,
        transactional_id: str | None = None,  # noqa: ARG002 – the signature is Faust's
    ) -> Any:
        batch = current_batch()
        if batch is None:
            return await self._send_now(topic, key, value, partition, timestamp, headers)
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        future.set_result(_join(batch, topic, key, value, partition, timestamp, headers))
        return future

    async def _send_now(self, *record: Any) -> Any:
        """Send outside a batch. Raises: ProducerSendError; KafkaError, also while the worker is stopping."""
        try:
            producer = await self._working()
            delivered = await super().send(*record)
        except NotReady as error:
            raise ProducerClosed from error
        delivered.add_done_callback(lambda done: self._note_failure(producer, done))
        return delivered

    def _note_failure(self, producer: Any, delivered: "asyncio.Future[Any]") -> None:
        error = None if delivered.cancelled() else delivered.exception()
        if error is not None and producer is self._producer and not self._broken:
            self._broken = True
            log.warning("producer_failed", stage="produce", error_type=type(error).__name__)

    async def _working(self) -> Any:
        """Return the current producer, or a new one if the last is broken. Raises: NotReady, KafkaError."""
        async with self._replacing:
            producer = self._ensure_producer()
            if not self._broken:
                return producer
            fresh = self._new_producer()
            try:
                await fresh.start()
                self._ensure_producer()  # raises if the worker was stopped in the meantime
                self._producer, self._broken = fresh, False
            finally:
                if self._producer is not fresh:
                    await fresh.stop()
        # records that the old producer has accepted are still delivered, or fail
        retiring = asyncio.create_task(_retire(producer))
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)
        return fresh

    def send_soon(self, fut: Any) -> None:
        batch = current_batch()
        if batch is None:
            super().send_soon(fut)
            return
        sent = fut.message
        topic = sent.channel.get_topic_name()
        fut.set_result(_join(batch, topic, sent.key, sent.value, sent.partition, sent.timestamp, sent.headers))


async def _retire(producer: Any) -> None:
    try:
        await producer.stop()
    finally:
        await producer.client.close()


class Conductor(base.Conductor):
    """Delivers messages to agents; our message classes decide what an acknowledgement means."""

    logger = LIFE_CYCLE

    def acks_enabled_for(self, topic: str) -> bool:  # noqa: ARG002 – the signature is Faust's
        return False


class Transport(driver.Transport):
    """Registered under the entry point `faust.transports`; tables need `faust.stores` too."""

    Consumer: Any = Consumer
    Producer: Any = EngineProducer
    Conductor: Any = Conductor


def _join(
    batch: Batch,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    partition: int | None,
    timestamp: float | None,
    headers: Any,
) -> RecordMetadata:
    timestamp_ms = int(timestamp * 1000) if timestamp else None
    batch.send(Output(topic, key, value, partition, timestamp_ms, _as_list(headers)))
    return RecordMetadata(topic, UNKNOWN_OFFSET, TP(topic, UNKNOWN_OFFSET), UNKNOWN_OFFSET)


def _as_list(headers: Any) -> Headers:
    return list(headers.items()) if hasattr(headers, "items") else list(headers or ())


def assignor_of_its_own(*, sticky: bool) -> type[AbstractPartitionAssignor]:
    """Return an assignor class for one consumer. Each needs its own, as aiokafka keeps a member's claims on the class.

    Partitions with state stay with their worker as far as balance allows. Partitions without state are assigned round
    robin: the sticky assignor balances all topics together, and could give one of two workers all of the first topic.
    """
    return type("Assignor", (StickyPartitionAssignor if sticky else RoundRobinPartitionAssignor,), {})


class KeptPositions(SubscriptionState):
    """aiokafka's subscription state, in which partitions keep their positions across a rebalance.

    aiokafka itself returns no records during a rebalance, and forgets every position at its end.
    """

    def begin_reassignment(self) -> None:
        """Do nothing: the last assignment holds until the next one."""

    def assign_from_subscribed(self, assignment: Iterable[TopicPartition]) -> None:
        """Set the assignment; partitions that stay keep their state."""
        before = self.subscription.assignment
        super().assign_from_subscribed(assignment)
        after = self.subscription.assignment
        for source in after.tps & before.tps if before is not None else ():
            state = before.state_value(source)
            state._assignment = after  # noqa: SLF001 – aiokafka has no seam: it is pinned exactly
            after._tp_state[source] = state  # noqa: SLF001 – see above


class RebalanceListener(ConsumerRebalanceListener):
    """Closes partitions that were given away and opens new ones; each partition recovers by itself afterwards.

    The protocol is Kafka's eager one, in which all members ask to join before any of them knows what it keeps.
    Partitions that stay keep working in the meantime: whoever opens a partition fences its earlier owner, and
    `TxnOffsetCommit`, as aiokafka sends it, carries no group generation. Only partitions whose records are handled at
    least once are released first, because their records in hand would be handled again elsewhere.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._began = time.monotonic()
        self._generation = NO_GENERATION

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Prepare for a rebalance, in which any partition may move."""
        consumer, app = self._consumer, self._consumer.app
        self._began = time.monotonic()
        consumer.in_group.clear()
        if consumer.works_on:
            app.on_rebalance_start()
            # a partition that is being opened now might fence its next owner
            await consumer.release([s for s, p in consumer.partitions.items() if not p.ready], HANDOVER_SECONDS)
            return
        # the agent skips records that it has not begun, because the partition and its state are about to be closed
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
        if not app.flow_control.is_active():  # resuming it clears the agents' queues
            app.flow_control.resume()
        app.on_rebalance_end()
        consumer.take(new)
        seconds = time.monotonic() - self._began
        app.engine_metrics.rebalanced(seconds)
        numbers = {"kept": len(kept), "opened": len(new), "closed": len(left)}
        log.info("rebalanced", app=app.conf.id, seconds=round(seconds, 3), **numbers)

    def _follows_the_last_generation(self) -> bool:
        """Note the group's generation; return whether no generation was missed in which others had our partitions."""
        consumer, before = self._consumer, self._generation
        self._generation = int(consumer.kafka._coordinator.generation)  # noqa: SLF001 – aiokafka has no seam: it is pinned exactly
        if issubclass(consumer.assignor, StickyPartitionAssignor):
            consumer.assignor.on_generation_assignment(self._generation)  # aiokafka itself never calls it
        return before != NO_GENERATION and self._generation == before + 1
