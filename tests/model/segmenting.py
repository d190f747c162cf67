"""The segmenter's surroundings in memory, with its agent, its tables and the engine as in production."""

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from aiokafka import TopicPartition
from opentelemetry.trace import NoOpTracer

from afterword.streams.app import faust_app
from afterword.streams.segmenter import agent as segmenter
from afterword.streams.settings import Episodes, Settings, load_settings
from afterword.streams.telemetry.metrics import Metrics
from distributions.engine.tests.simulation.broker import Broker, Record
from distributions.engine.tests.simulation.database import Disk, MemoryDatabase
from distributions.engine.tests.simulation.loop import Loop
from distributions.engine.tests.simulation.network import Network
from distributions.engine.tests.simulation.process import RUNNING_IN, ExactlyOnceProcess
from faust_eos.app import App
from faust_eos.batch import Tick, current_batch, take_batch
from faust_eos.options import Options
from tests.unit.segmenter.chat import NOON, Sent

SOURCE = TopicPartition("messages", 0)
EPISODES = TopicPartition("episode.closed", 0)
DEAD_LETTERS = TopicPartition("messages.dlq", 0)
SECOND = 1000
LIMITS = Episodes(
    trigger=5,
    min_episode_size=2,
    max_episode_size=3,
    overlap=1,
    idle_seconds=60.0,
    dedupe_window=4,
    forget_after_days=0.5,
)
"""Small limits, so that a few messages meet all of the rules."""
AGENTS_LIMITS = LIMITS.model_copy(update={"scope": "agent", "max_agents": 2})
ENGINE = {"max_batch": 6, "tick_keys": 2, "agent_retries": 1000}
"""More retries than failures in any history, because a worker that rightly gives up is of no interest."""


class AgentTrouble(Exception):
    """The agent fails, once."""


@cache
def segmenter_settings(scope: str) -> Settings:
    limits = AGENTS_LIMITS if scope == "agent" else LIMITS
    return load_settings(state_dir=Path(os.devnull), episodes=limits.model_dump())


@cache
def the_app(scope: str = "conversation") -> App:
    """Return the app, which all processes of all histories share, because it keeps no state."""
    settings = segmenter_settings(scope)
    app = faust_app(settings, settings.kafka.group_of("segmenter"))
    app.engine = Options(clock=lambda: RUNNING_IN.get().clock(), **ENGINE)
    segmenter.attach_segmenter(app, settings, Metrics("segmenter", "0"), NoOpTracer())
    return app


def changelogs() -> dict[str, TopicPartition]:
    return {
        table.name: TopicPartition(table.changelog_topic.get_topic_name(), 0) for table in the_app().tables.values()
    }


@dataclass(frozen=True)
class Work:
    """Input of a transaction."""

    worker: str
    records: tuple[Any, ...] | None
    """None for a tick."""
    now_ms: int
    due: tuple[bytes, ...] = ()
    """Keys of a tick."""


class Worker(ExactlyOnceProcess):
    """One process of the segmenter, with its own disk."""

    def __init__(self, name: str, world: "World", disk: Disk) -> None:
        app = the_app(world.limits.scope)
        super().__init__(name, world.network, world.broker, app.engine, app.tables, app.conf.id)
        self.world = world
        self.disk = disk
        self.trips = 0
        self._read_ms = 0
        self._work: Any = ()

    def clock(self) -> int:
        if self.trips and current_batch() is not None:  # the agent asks
            self.trips -= 1
            raise AgentTrouble
        self._read_ms = self.world.wall_ms
        self.world.looked_at_the_clock(self)
        return self._read_ms

    def note(self) -> Work:
        if isinstance(self._work, Tick):
            return Work(self.name, None, self._work.now_ms, tuple(key for _, key in self._work.due))
        return Work(self.name, tuple(self._work), self._read_ms)

    def open_database(self, where: str, deadlines: Any) -> MemoryDatabase:
        tidy_after_ms = self.world.limits.forget_after_ms
        return MemoryDatabase(Path(where), deadlines, disk=self.disk, tidy_after_ms=tidy_after_ms, clock=self.clock)

    async def agent(self) -> None:
        await the_app(self.world.limits.scope).agents["segmenter"].fun(self._values())

    async def _values(self) -> AsyncIterator[Any]:
        async for event in self.events():
            self._work = event.value
            taken = take_batch(event.value)
            await self.take_its_time()
            yield taken


class World:
    """The broker, the network and all workers."""

    def __init__(self, workers: int, limits: Episodes = LIMITS) -> None:
        self.limits = limits
        self.loop = Loop()
        self.network = Network(self.loop)
        self.true_ms = NOON
        self.skew_ms = 0
        self.broker = Broker(self.network.post)
        self.started: list[Worker] = []
        self.workers = [self._new_worker(f"w{n}", {}) for n in range(workers)]
        self.ends_seen: dict[tuple[str, int], int] = {}
        """Lowest end of the source, by worker and the time on its clock."""
        self.produced = 0
        self.owner = 0
        """The last worker that the group has assigned the partition to."""

    @property
    def wall_ms(self) -> int:
        return self.true_ms + self.skew_ms

    def looked_at_the_clock(self, worker: Worker) -> None:
        self.ends_seen.setdefault((worker.name, self.wall_ms), self.broker.log(SOURCE).stable)

    def produce(self, sent: list[Sent]) -> None:
        rows = [(s.key, s.value, s.timestamp, s.headers) for s in sent]
        self.broker.append(SOURCE, rows)

    def take(self, number: int) -> None:
        """Assign the partition to a worker. A dead worker first starts again with the contents of its disk."""
        if self.workers[number].dead:
            self.workers[number] = self._new_worker(self.workers[number].name, self.workers[number].disk)
        if self.workers[number].partition is None:
            self.workers[number].assign(self.loop, SOURCE)
            self.owner = number

    def is_outdated(self, number: int) -> bool:
        """Return whether the group no longer considers the worker the owner, as its next heartbeat will show."""
        return self.owner != number

    def kill(self, number: int) -> None:
        worker = self.workers[number]
        worker.kill(self.loop)
        worker.disk = copied(worker.disk)

    def _new_worker(self, name: str, disk: Disk) -> Worker:
        worker = Worker(name, self, disk)
        worker.start(self.loop)
        self.started.append(worker)
        return worker

    def counted_as_expired(self) -> int:
        """Return the number of expired records that all workers together have counted."""
        counters = [w.metrics.get_sample_value("engine_records_expired_total", {"role": w.name}) for w in self.started]
        return sum(int(counter or 0) for counter in counters)

    def source_end(self) -> int:
        """Return the offset after the last record."""
        records = self.broker.log(SOURCE).history(0)
        return records[-1].offset + 1 if records else 0

    def close(self) -> None:
        for worker in self.workers:
            worker.kill(self.loop)


def copied(disk: Disk) -> Disk:
    return {path: files.copy() for path, files in disk.items()}


def as_sent(record: Record) -> Sent:
    return Sent(record.key, record.value, record.offset, record.timestamp, record.topic, record.partition)
