"""The engine as Faust sees it: the app's transport with its consumer and its producer, and its tables.

Faust handles group membership and the callbacks into the app; fetching, committing and the state belong to the
partitions.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import structlog
from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from faust import Table as FaustTable
from faust import current_event
from faust.stores.base import Store as FaustStore
from faust.tables import TableManager as FaustTableManager
from faust.transport import base
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import TP, RecordMetadata

from faust_eos.at_least_once import AtLeastOnce, AtLeastOncePartition, ConcurrentMessage
from faust_eos.batch import Batch, Batches, current_batch
from faust_eos.database import STATE_MEMORY_BYTES, Database, DeadlineOf, NoDatabase, StateMemory
from faust_eos.errors import AgentFailed, NotInAgent, described
from faust_eos.exactly_once import ExactlyOncePartition
from faust_eos.kafka import Clients
from faust_eos.options import LIFE_CYCLE
from faust_eos.transaction import Output

log = structlog.get_logger()

FETCH_MAX_WAIT_MS = 200
METADATA_AGE_MS = 60_000
"""Longest time until a topic that was deleted and created again is read; aiokafka's default is five minutes."""
UNKNOWN_OFFSET = -1
"""Stands for the offset of a record in a batch, which has none before the commit."""

Partition = ExactlyOncePartition | AtLeastOncePartition
HANDOVER_SECONDS = 1.0
"""Time to close a partition that may already have another owner. A begun batch seldom finishes in it, because the new
owner ends its transaction."""


class Consumer(base.Consumer):
    """Faust's consumer, built on one aiokafka consumer and one task per partition."""

    logger = LIFE_CYCLE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.partitions: dict[TopicPartition, Partition] = {}
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
            **self.clients().settings,
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
            metadata_max_age_ms=METADATA_AGE_MS,
            max_partition_fetch_bytes=conf.consumer_max_fetch_size,
            partition_assignment_strategy=[self.assignor],
        )
        self.kafka._subscription = KeptPositions()  # noqa: SLF001 – aiokafka has no public way, so it is pinned exactly
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
            schemas = {name: topic.schema for topic in self.app.topics for name in topic.topics}
            for source in sources:
                match schemas[source.topic]:
                    case AtLeastOnce() as schema:
                        self.partitions[source] = AtLeastOncePartition(self, source, schema)
                    case Batches() as schema:
                        self.partitions[source] = ExactlyOncePartition(self, source, schema)
                    case _:
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
            # otherwise the record would never finish, and the offset would stand still unnoticed
            self.stop_worker(AgentFailed(where=str(event.message), cause=exc))
        elif batch is not None:
            batch.fail(exc)

    # -- for the partitions

    def clients(self) -> Clients:
        conf = self.app.conf
        return Clients(
            {
                "bootstrap_servers": driver.server_list(self.transport.url, self.transport.default_port),
                "client_id": conf.broker_client_id,
                "request_timeout_ms": int(conf.broker_request_timeout * 1000),
                **self.app.security,
            }
        )

    @cached_property
    def _state_memory(self) -> StateMemory:
        return StateMemory(STATE_MEMORY_BYTES)

    def open_database(self, where: str, deadlines: Mapping[str, DeadlineOf | None]) -> Database | NoDatabase:
        if not deadlines:
            return NoDatabase()
        engine, path = self.app.engine, self.app.conf.tabledir / where
        return Database(
            path, deadlines, memory=self._state_memory, tidy_after_ms=engine.tidy_after_ms, clock=engine.clock
        )

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

    async def ends(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the partitions' end offsets; without any, only check that a broker answers. Raises: KafkaError."""
        if self.kafka is None:
            return {}
        asked = list(sources)
        if not asked:
            await self.kafka.topics()
        return dict(await self.kafka.end_offsets(asked)) if asked else {}

    # -- Faust's own fetching, acknowledging, committing and recovery, which are unused

    def close(self) -> None: ...

    async def _unused(self, *_: Any, **__: Any) -> Any:
        """Do nothing."""

    commit = verify_all_partitions_active = perform_seek = seek_to_committed = seek_wait = create_topic = _unused
    position = highwaters = earliest_offsets = _commit = _getmany = _seek = _unused

    def _not_used(self, *_: Any) -> Any:
        raise NotImplementedError

    highwater = key_partition = _new_topicpartition = _to_message = _not_used


class EngineProducer(driver.Producer):
    """Faust's producer. Inside an agent, a send joins the batch of its event; elsewhere it goes out at once."""

    logger = LIFE_CYCLE

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
            return await super().send(topic, key, value, partition, timestamp, headers)
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        future.set_result(_join(batch, topic, key, value, partition, timestamp, headers))
        return future

    def send_soon(self, fut: Any) -> None:
        batch = current_batch()
        if batch is None:
            super().send_soon(fut)
            return
        sent = fut.message
        topic = sent.channel.get_topic_name()
        fut.set_result(_join(batch, topic, sent.key, sent.value, sent.partition, sent.timestamp, sent.headers))


class Conductor(base.Conductor):
    """Delivers messages to agents; our message classes decide what an acknowledgement means."""

    logger = LIFE_CYCLE

    def acks_enabled_for(self, topic: str) -> bool:  # noqa: ARG002 – the signature is Faust's
        return False


class Transport(driver.Transport):
    """What `App` uses in place of the transport that Faust would choose by the brokers' URL."""

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
    named = list(headers.items()) if hasattr(headers, "items") else list(headers or ())
    batch.send(Output(topic, key, value, headers=named, partition=partition, timestamp_ms=timestamp_ms))
    return RecordMetadata(topic, UNKNOWN_OFFSET, TP(topic, UNKNOWN_OFFSET), UNKNOWN_OFFSET)


def assignor_of_its_own(*, sticky: bool) -> type[AbstractPartitionAssignor]:
    """Return an assignor class for one consumer. Each needs its own, as aiokafka keeps a member's claims on the class.

    Partitions with state stay with their worker if the workers are balanced. Partitions without state are assigned
    round robin: the sticky assignor balances all topics together, and could give one of two workers all of the first
    topic.
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
            state._assignment = after  # noqa: SLF001 – aiokafka has no public way, so it is pinned exactly
            after._tp_state[source] = state  # noqa: SLF001 – see above


class RebalanceListener(ConsumerRebalanceListener):
    """Closes partitions that were given away and opens new ones; each partition recovers by itself afterwards.

    It uses Kafka's eager protocol: all members ask to join before any of them knows what it keeps. Partitions that stay
    keep working in the meantime: whoever opens a partition fences its earlier owner, even one that missed a whole
    generation, and `TxnOffsetCommit`, as aiokafka sends it, carries no group generation. Only partitions whose records
    are handled at least once are released first, because their records in hand would be handled again elsewhere.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._began = time.monotonic()

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
        if issubclass(consumer.assignor, StickyPartitionAssignor):  # aiokafka itself never calls this
            generation = int(consumer.kafka._coordinator.generation)  # noqa: SLF001 – aiokafka has no public way, so it is pinned exactly
            consumer.assignor.on_generation_assignment(generation)
        kept = consumer.partitions.keys() & sources
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


class Store(FaustStore):
    """The agent's view of a table: the changes of its batch on top of the partition's database. All of it is bytes."""

    logger = LIFE_CYCLE

    def __getitem__(self, key: Any) -> Any:
        batch = self._batch()
        changed = batch.tables[self.table_name]
        value = changed[key] if key in changed else batch.database.get(self.table_name, key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        batch = self._batch()
        if batch.accepts(f"table {self.table_name}"):
            batch.tables[self.table_name][key] = value

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        batch = self._batch()
        if batch.accepts(f"table {self.table_name}"):
            changed = batch.tables[self.table_name]
            if batch.database.get(self.table_name, key) is None:
                del changed[key]  # created and deleted in one batch: no change
            else:
                changed[key] = None

    __contains__ = Mapping.__contains__  # Faust's uses a dictionary that this kind of store does not have

    def changes(self, batch: Batch) -> list[tuple[bytes, bytes | None]]:
        """Return the batch's changes to this table."""
        return list(batch.tables.get(self.table_name, {}).items())

    def _batch(self) -> Batch:
        batch = current_batch()
        if batch is None or batch.database is None:  # the batch of an at-least-once record has no tables
            raise NotInAgent(table=self.table_name)
        return batch

    def reset_state(self) -> None:
        """Do nothing: the state belongs to the partitions, which reset it themselves."""

    def _unsupported(self, *_: Any, **__: Any) -> Any:
        """Not supported: nothing lists rows, and each partition recovers only its own. Raises: NotImplementedError."""
        raise NotImplementedError

    __iter__ = __len__ = keys = values = items = update = clear = _unsupported
    apply_changelog_batch = backup_partition = restore_backup = _unsupported


class Table(FaustTable):
    """A Faust table of bytes without windows; keep a deadline in the row instead.

    `deadline` reads the deadline from a row's encoded value; when it has passed, the agent gets a `Tick`.
    """

    logger = LIFE_CYCLE

    def __init__(self, app: Any, *, deadline: DeadlineOf | None = None, **kwargs: Any) -> None:
        self.deadline = deadline
        super().__init__(app, **kwargs)

    def _new_store(self) -> Store:
        return Store("", self.app, self)

    def _unused(self, *_: Any) -> None:
        """Do nothing: the batch has the change, which its commit sends to the changelog."""

    on_key_set = on_key_del = _unused

    def using_window(self, *_: Any, **__: Any) -> Any:
        """Not supported. Raises: NotImplementedError."""
        raise NotImplementedError("windows are not supported: keep the deadline in the row")


class TableManager(FaustTableManager):
    """Starts the tables without subscribing to their changelogs, because partitions recover themselves."""

    logger = LIFE_CYCLE

    async def on_start(self) -> None:
        for table in self.values():
            await table.maybe_start()
        self._tables_registered.set()

    async def on_stop(self) -> None:
        for table in self.values():
            await table.stop()

    async def wait_until_recovery_completed(self) -> bool:
        return False

    async def on_rebalance(self, *_: Any, **__: Any) -> None:
        """Do nothing: each partition recovers by itself when it is assigned."""

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Do nothing: each partition closes its own state."""
