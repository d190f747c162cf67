"""The world in which faults are injected: servers, workers, the load, and a supervisor."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from afterword.embedded import EmbeddedStack, Process
from afterword.operating.audit import Report
from afterword.schemas.dead_letters import read_dead_letter
from afterword.streams.kafka.log_reader import open_log
from tests.e2e.deployment import Deployment
from tests.e2e.faults.llm import Llm
from tests.e2e.faults.load import Load
from tests.e2e.faults.loops import Loops
from tests.e2e.faults.stalls import Stalls
from tests.e2e.faults.wire import Wire
from tests.mongo_server import MongoServer, running_mongo
from tests.qdrant_server import QdrantServer
from tests.stack import chosen_format, chosen_jars
from tests.three_brokers import StackOfThree
from tests.waiting import until

LOOK_SECONDS = 0.25
PAUSE_SECONDS = 1.0
"""Pause before the supervisor restarts a worker that ended by itself."""
PATIENCE_SECONDS = 180.0
"""Enough for a busy machine."""
OK = 200
ON_SERVERS = {"sqlite": {"path": None}}
"""Settings of a deployment that keeps everything in MongoDB and Qdrant."""


@dataclass
class Servers:
    """Servers shared by many runs; a fault that breaks one must repair it."""

    stack: EmbeddedStack
    database: MongoServer
    mongo: Wire
    """Proxy to `database`; used by those whose settings say ON_SERVERS, as is `qdrant`."""
    llm: Llm
    qdrant: Wire
    """Proxy to `index`."""
    index: QdrantServer

    @property
    def kafka(self) -> Any:
        return self.stack.kafka


@contextlib.asynccontextmanager
async def serving(directory: Path, brokers: int = 1) -> AsyncIterator[Servers]:
    jars = chosen_jars()
    one = EmbeddedStack(directory, jars=jars, format_arguments=chosen_format())
    async with (
        one if brokers == 1 else StackOfThree(directory, jars=jars) as stack,
        running_mongo(directory / "mongo") as database,
        Wire(database.port) as wire,
        Llm() as llm,
        QdrantServer() as index,
        Wire(index.port) as qdrant,
    ):
        yield Servers(stack, database, wire, llm, qdrant, index)


@dataclass
class Ended:
    """A worker that ended by itself."""

    name: str
    code: int
    tail: str


@dataclass
class World:
    """One deployment under load. `long`: the faults take their full time."""

    servers: Servers
    deployment: Deployment
    load: Load
    groups: dict[str, Stalls]
    """Stalls by role, of the groups that are watched; the segmenter's always is."""
    loops: Loops
    """Blocked event loops, if the run measures them."""
    long: bool
    ended: list[Ended] = field(default_factory=list)
    roles: dict[str, str] = field(default_factory=dict)
    """Role of every worker that was ever started, by name."""
    report: Report | None = None
    """The audit's report, at the end."""
    _dead: dict[tuple[int, int], str] | None = None
    _ports: dict[int, int] = field(default_factory=dict)
    _log_begins: dict[str, int] = field(default_factory=dict)

    @property
    def stalls(self) -> Stalls:
        return self.groups["segmenter"]

    def seconds(self, short: float, long: float) -> float:
        return long if self.long else short

    # -- workers

    def start(self, role: str, name: str | None = None) -> str:
        name = name or role
        self.roles[name] = role
        self._log_begins[name] = self._log_size(name)
        self.deployment.start(role, name)
        return name

    def crash(self, name: str) -> None:
        """Send SIGKILL, and start a new worker in its place at once."""
        self.deployment.kill(name)
        self.start(self.roles[name], name)

    def running(self, role: str) -> list[str]:
        return [name for name in self.deployment.workers if self.roles[name] == role]

    def worker(self, name: str) -> Process:
        return self.deployment.workers[name]

    async def supervise(self) -> None:
        """Restart workers that ended by themselves, until cancelled."""
        while True:
            for name, worker in list(self.deployment.workers.items()):
                if not worker.running:
                    self.ended.append(Ended(name, worker.returncode or 0, worker.tail()))
                    await asyncio.sleep(PAUSE_SECONDS)
                    if self.deployment.workers.get(name) is worker:
                        worker.kill()  # reaps it
                        self.start(self.roles[name], name)
            await asyncio.sleep(LOOK_SECONDS)

    async def stop(self, name: str) -> None:
        """Send SIGTERM to a worker that is up, which must then exit with 0."""
        await self.ready(name)
        code = await self.deployment.stop(name)
        assert code == 0, f"{name} ends with {code}"

    async def ready(self, name: str) -> None:
        """Wait until the worker is ready."""
        async with httpx.AsyncClient() as client:
            await until(lambda: self._is_ready(client, name), f"{name} does not become ready")

    async def ready_ones(self, names: Iterable[str]) -> list[str]:
        """Wait until at least one is ready, and return those that are."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        async with httpx.AsyncClient() as client:
            while not (found := [name for name in names if await self._is_ready(client, name)]):
                assert time.monotonic() < deadline, "no worker becomes ready"
                await asyncio.sleep(LOOK_SECONDS)
        return found

    def said(self, name: str) -> bytes:
        """Return the worker's log since its last start."""
        return self.worker(name).log.read_bytes()[self._log_begins[name] :]

    def listening(self, name: str) -> int | None:
        """Return its health port, once it is up."""
        port = re.search(rb'"port": (\d+), "event": "health_server_started"', self.said(name))
        return int(port[1]) if port else None

    def targets(self) -> dict[str, tuple[int, int]]:
        """Return pid and health port of each worker that is up, by name."""
        for name, worker in self.deployment.workers.items():
            if worker.pid not in self._ports and (port := self.listening(name)):
                self._ports[worker.pid] = port
        pids = {name: worker.pid for name, worker in self.deployment.workers.items()}
        return {name: (pid, self._ports[pid]) for name, pid in pids.items() if pid in self._ports}

    async def _is_ready(self, client: httpx.AsyncClient, name: str) -> bool:
        port = self.listening(name)
        if port is None:
            return False
        try:
            answer = await client.get(f"http://127.0.0.1:{port}/readyz")
        except httpx.HTTPError:
            return False
        return answer.status_code == OK

    def _log_size(self, name: str) -> int:
        log = self.deployment.directory / "logs" / f"{name}.log"
        return log.stat().st_size if log.exists() else 0

    async def busy(self, records: int = 30) -> None:
        """Wait until this many more records were sent."""
        target = len(self.load.sent) + records
        await until(lambda: len(self.load.sent) >= target, "the load does not go on")

    async def progress(self) -> None:
        """Wait until the segmenter has committed more than now."""
        looks = self.stalls.looks
        await until(
            lambda: self.stalls.looks > looks + 1, "no broker answers"
        )  # the next commit may have begun earlier
        before = self.stalls.committed
        await until(lambda: self.stalls.committed > before, "the segmenter commits nothing", PATIENCE_SECONDS)

    async def caught_up(self) -> None:
        """Wait until the segmenter has committed everything that was sent until now."""
        sent = len(self.load.sent)
        await until(lambda: self.stalls.committed >= sent, "the segmenter does not catch up")

    async def handled(self, last: Mapping[int, int], seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until segmenter and archiver have committed these offsets, by partition."""
        groups = [self.groups[role] for role in ("segmenter", "archiver")]
        await until(
            lambda: all(group.offsets.get(at, 0) > offset for group in groups for at, offset in last.items()),
            "what was sent is not handled",
            seconds,
        )

    # -- topics

    async def dead_letters(self) -> dict[tuple[int, int], str]:
        """Return the error types of the rejected records of `messages`, by partition and offset. They are read once."""
        if self._dead is None:
            kafka, self._dead = self.deployment.settings.kafka, {}
            async with open_log(kafka) as log:
                async for record in log.records(kafka.dead_letters(kafka.messages_topic)):
                    letter = read_dead_letter(record)
                    if letter.origin is not None:
                        self._dead[letter.origin.partition, letter.origin.offset] = letter.error_type
        return self._dead

    @contextlib.asynccontextmanager
    async def admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        client = AIOKafkaAdminClient(bootstrap_servers=self.servers.stack.bootstrap_servers)
        try:
            await client.start()
            yield client
        finally:
            await client.close()

    async def configure(self, topic: str, **configs: str) -> None:
        """Set these configurations (with underscores for dots), and all others of the topic to their defaults."""
        named = {name.replace("_", "."): value for name, value in configs.items()}
        async with self.admin() as admin:
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=named)])
