"""A worker process reduced to one partition: the engine's classes on a network that fails."""

import asyncio
import contextvars
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from faust.streams import _current_event
from prometheus_client import CollectorRegistry

from distributions.engine.tests.simulation.broker import Broker
from distributions.engine.tests.simulation.clients import Clients, Consumer
from distributions.engine.tests.simulation.database import MemoryDatabase
from distributions.engine.tests.simulation.loop import Loop
from distributions.engine.tests.simulation.network import Network
from faust_eos.batch import Batches, BatchMessage
from faust_eos.exactly_once import ExactlyOncePartition
from faust_eos.failures import Breaker
from faust_eos.metrics import EngineMetrics

HEARTBEAT_SECONDS = 0.5
MOST_TIMERS = 1000
AGENT = "agent"
RUNNING_IN: contextvars.ContextVar["Process"] = contextvars.ContextVar("process")


class Event:
    """Faust's event around a message."""

    def __init__(self, message: Any, process: "Process") -> None:
        self.message = message
        self.value = message.value
        self._process = process

    def ack(self) -> bool:
        return bool(self.message.ack(self._process))


class Process:
    """Stands in for Faust's app and consumer, on which the engine's partitions depend."""

    def __init__(self, name: str, network: Network, broker: Broker, engine: Any, tables: Any, app_id: str) -> None:
        self.name = name
        self.network, self.broker = network, broker
        self.metrics = CollectorRegistry()
        self.app = SimpleNamespace(
            engine=engine,
            engine_metrics=EngineMetrics(self.metrics, name),
            conf=SimpleNamespace(id=app_id, broker_heartbeat_interval=HEARTBEAT_SECONDS),
            tables=tables,
            breaker=Breaker(),
            consumer_generation_id=0,
            consumer=self,
        )
        self.kafka = Consumer(network, broker, self)
        self.in_group = asyncio.Event()
        self.in_group.set()
        self.partition: Any = None
        self.generation = 0
        self.dead = False
        self.frozen = False
        self.handled = 0
        self.releasing: asyncio.Task[None] | None = None
        self.error: BaseException | None = None
        """The error that stopped it."""
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    # -- the interface that the engine uses

    def clients(self) -> Clients:
        return Clients(self.network, self.broker, self)

    async def callback(self, message: Any) -> None:
        message.incref()
        self._events.put_nowait(Event(message, self))

    def on_partition_exit(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.stop_worker(error)

    def stop_worker(self, error: BaseException) -> None:
        if not self.dead:
            self.error = error

    def ack(self, message: Any) -> bool:
        """Acknowledge, like Faust's consumer."""
        message.acked = True
        return True

    def note(self) -> Any:
        """Return a note to store with a transaction that begins now."""
        return None

    # -- what tests do to it

    def start(self, loop: Loop) -> None:
        """Start the agent, which waits for events."""
        with loop.running():
            context = contextvars.copy_context()
            context.run(RUNNING_IN.set, self)
            loop.create_task(self.agent(), context=context)
        loop.run_ready()

    async def agent(self) -> None:
        raise NotImplementedError

    def new_partition(self, source: TopicPartition) -> Any:
        raise NotImplementedError

    async def after_release(self) -> None:
        """Run the application's callback for lost partitions."""

    def assign(self, loop: Loop, source: TopicPartition) -> None:
        self.app.consumer_generation_id += 1
        with loop.running():
            context = contextvars.copy_context()
            context.run(RUNNING_IN.set, self)
            self.partition = context.run(self.new_partition, source)
        loop.run_ready()

    def revoke(self, loop: Loop, within_seconds: float) -> None:
        """Revoke the partition in a rebalance that the worker notices; it is gone when `releasing` is done."""
        self.app.consumer_generation_id += 1
        with loop.running():
            context = contextvars.copy_context()
            context.run(RUNNING_IN.set, self)
            self.releasing = loop.create_task(self._release(within_seconds), context=context)
        loop.run_ready()

    async def _release(self, within_seconds: float) -> None:
        await self.partition.stop(within_seconds)
        await self.after_release()
        self.partition = None

    def kill(self, loop: Loop) -> None:
        """Kill the process. Its later calls have no effect."""
        self.dead = True
        ours = [task for task, context in loop.tasks.items() if context.get(RUNNING_IN) is self]
        with loop.running():
            for task in ours:
                task.cancel()
        loop.run_ready()
        for _ in range(MOST_TIMERS):
            if not any(task in loop.tasks for task in ours):
                return
            loop.pass_until(loop.next_timer() or loop.time())
            loop.run_ready()
        raise AssertionError("does not end when it is cancelled")

    async def take_its_time(self) -> None:
        """Yield, so that other events can happen meanwhile."""
        await self.network.call(self, AGENT, lambda: None)

    async def before_taking(self) -> None:
        """A hook between the agent's queue and the agent."""

    async def events(self) -> AsyncIterator[Event]:
        """Stream events like Faust: track each, skip those of an earlier assignment, and acknowledge an event when the
        next is requested."""
        while True:
            event = await self._events.get()
            await self.before_taking()
            message = event.message
            if message.generation_id != self.app.consumer_generation_id:
                event.ack()
                continue
            message.tracked = True
            _current_event.set(_Reference(event))  # a strong reference is enough, because it is requested once
            try:
                yield event
            finally:
                if isinstance(message, BatchMessage):
                    event.ack()


class _Reference:
    def __init__(self, event: Event) -> None:
        self._event = event

    def __call__(self) -> Event:
        return self._event


class ExactlyOnceProcess(Process):
    """A process that reads, writes and commits in one transaction."""

    def open_database(self, where: str, deadlines: Any) -> MemoryDatabase:
        """Open an empty database, because each worker has its own disk."""
        return MemoryDatabase(Path(where), deadlines, disk={}, clock=self.app.engine.clock)

    def new_partition(self, source: TopicPartition) -> ExactlyOncePartition:
        return ExactlyOncePartition(self, source, Batches())
