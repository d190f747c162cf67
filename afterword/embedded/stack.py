"""The embedded stack: Apache Kafka as a child process, and the path of the stores' SQLite file.

Kafka is one node (KRaft) that is both broker and controller.
"""

import asyncio
import base64
import shutil
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from threading import Event
from types import MappingProxyType, TracebackType
from typing import Self

from aiokafka.admin import AIOKafkaAdminClient

from afterword.embedded.claims import HOST, DirectoryLock, remembered_ports
from afterword.embedded.java import DownloadProgress, Jar, JarsUnavailable, Java, ignore_progress
from afterword.embedded.process import NotReady, Process, Server, accepts, until_ready
from afterword.streams.errors import AfterwordError
from afterword.streams.private import private_directory, write_private

LEAST_DISK_BYTES = 16 * 1024 * 1024
"""A disk with less free space than this counts as full, because Kafka writes files of this size."""

Properties = Mapping[str, str | int]

CLEANER_BYTES = 16 << 20
"""Memory for log compaction. By default Kafka uses a third of our heap, or twice that if it compacts more often, and
the broker then ran out of memory and stopped compacting."""
REQUEST_MILLISECONDS = 5_000
RECORDING_SECONDS = 120.0
"""Time limit for stopping, and for writing an archive of classes, which takes 4 s on an idle machine."""
META = "meta.properties"
SECURITY = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
UNREPLICATED: Properties = {
    "default.replication.factor": 1,
    "min.insync.replicas": 1,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}


class DiskFull(AfterwordError):
    """the disk of {directory} is full: free some space, or choose another directory"""


def is_full(directory: Path) -> bool:
    """Return whether the disk of an existing directory is full."""
    return shutil.disk_usage(directory).free < LEAST_DISK_BYTES


class Broker(Server):
    """A Kafka broker that keeps its ports and data in `directory`, so that it can be restarted."""

    def __init__(
        self,
        java: Java,
        directory: Path,
        pass_fds: Collection[int] = (),
        *,
        record: bool = False,
        properties: Properties = MappingProxyType({}),
    ) -> None:
        """Prepare the broker without starting it.

        With `record`, it may record its classes for later starts. `properties` replace or extend our own.
        """
        self.java = java
        self.directory = directory
        self.cluster_id = new_id()
        """Id of the cluster that a new directory is formatted for."""
        self.ports = remembered_ports(directory / "ports.json", 2)
        """The ports of the broker and of the controller."""
        self._pass_fds = pass_fds
        self._record = record
        self._further = properties

    @property
    def bootstrap_servers(self) -> str:
        """The plain listener's address, as host:port."""
        return f"{HOST}:{self.ports[0]}"

    @property
    def logs(self) -> Path:
        """The directory of its data."""
        return self.directory / "logs"

    def properties(self) -> dict[str, str | int]:
        return {**server_properties(self.ports[0], self.ports[1], self.logs), **self._further}

    def format(self) -> None:
        """Format the directory of a new node ourselves, because Kafka's own tool would start another JVM."""
        private_directory(self.logs)
        ids = {"cluster.id": self.cluster_id, "node.id": self.properties()["node.id"], "directory.id": new_id()}
        write_private(self.logs / META, render({"version": 1, **ids}).encode())

    def stop(self) -> None:
        """Stop gracefully; blocks. The broker that records its classes takes a few seconds more."""
        if hasattr(self, "process"):
            self.process.stop(RECORDING_SECONDS)
            self.java.keep_recording()

    def _launch(self) -> Process:
        private_directory(self.directory)
        properties = self.directory / "server.properties"
        properties.write_text(render(self.properties()))
        if not (self.logs / META).exists():
            self.format()
        command = self.java.broker(properties, record=self._record)
        return Process("kafka", command, self.directory / "kafka.log", pass_fds=self._pass_fds)


def server_properties(broker_port: int, controller_port: int, logs: Path) -> dict[str, str | int]:
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{broker_port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{broker_port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": SECURITY,
        "log.dirs": str(logs),
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        "log.cleaner.dedupe.buffer.size": CLEANER_BYTES,
        **UNREPLICATED,
    }


def render(properties: Properties) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def new_id() -> str:
    """Generate an id in Kafka's form. It does not begin with a dash, which Kafka's tools would read as an option."""
    first, *rest = uuid.uuid4().bytes
    return base64.urlsafe_b64encode(bytes([first & 0x7F, *rest])).decode().rstrip("=")


async def has_brokers(bootstrap_server: str, count: int = 1) -> None:
    """Check that this broker sees `count` live brokers. Raises: NotReady, KafkaError, OSError."""
    host, port = bootstrap_server.split(":")
    await accepts(host, int(port))  # aiokafka logs an error for every refused connection
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_server, request_timeout_ms=REQUEST_MILLISECONDS)
    try:
        await admin.start()
        found = len((await admin.describe_cluster())["brokers"])
    finally:
        await admin.close()
    if found != count:
        raise NotReady(f"{found} of {count} brokers are alive")


class EmbeddedStack:
    """Kafka on 127.0.0.1 and the stores' SQLite file. All data is in `directory` and survives a restart.

    `kafka` exists after the first start; tests kill, suspend and restart it.
    """

    kafka: Broker

    def __init__(
        self,
        directory: Path,
        *,
        progress: DownloadProgress = ignore_progress,
        jars: Sequence[Jar] | None = None,
        record: bool = True,
        properties: Properties = MappingProxyType({}),
    ) -> None:
        """Prepare the stack without starting it.

        `jars` defaults to those of `jars.lock`; tests run other versions of Kafka. If `record` is true, the first
        broker on this machine records an archive of Kafka's classes, which halves the time of all later starts.
        `properties` extend or replace the broker's properties.
        """
        self.directory = directory.absolute()
        self._record = record
        self._properties = properties
        self._progress = progress
        self._stopping = Event()
        self._java = Java(progress=self._report, jars=jars)
        self._lock = DirectoryLock(self.directory)

    async def start(self) -> None:
        """Start Kafka and wait until it answers.

        Raises: DirectoryInUse, DiskFull, JarsUnavailable, ProcessExited, StartTimeout.
        """
        self._stopping.clear()
        private_directory(self.directory)
        if is_full(self.directory):  # Kafka starts on a full disk, and then exits when a topic is created
            raise DiskFull(directory=self.directory)
        async with AsyncExitStack() as undo:
            await asyncio.to_thread(self._lock.acquire)
            undo.push_async_callback(self.stop)
            await asyncio.to_thread(self._java.prepare)
            self.kafka = self._broker(self._java, self.directory / "kafka", (self._lock.fd,))
            await self.start_kafka()
            undo.pop_all()

    def _broker(self, java: Java, directory: Path, pass_fds: tuple[int, ...]) -> Broker:
        return Broker(java, directory, pass_fds, record=self._record, properties=self._properties)

    async def stop(self) -> None:
        """Stop Kafka. Everything written is on disk afterwards."""
        self._stopping.set()
        try:
            if hasattr(self, "kafka"):
                await asyncio.to_thread(self.kafka.stop)
        finally:
            self._lock.release()

    async def start_kafka(self) -> None:
        """Start Kafka unless it is running, and wait until it answers."""
        await asyncio.to_thread(self.kafka.start)
        await until_ready(self.kafka.process, partial(has_brokers, self.kafka.bootstrap_servers))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def bootstrap_servers(self) -> str:
        return self.kafka.bootstrap_servers

    @property
    def sqlite_path(self) -> Path:
        """The stores' database file."""
        return self.directory / "afterword.sqlite"

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a worker on this stack."""
        return {
            "AFTERWORD_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "AFTERWORD_KAFKA__REPLICATION_FACTOR": "1",
            "AFTERWORD_KAFKA__MIN_INSYNC_REPLICAS": "1",
            "AFTERWORD_SQLITE__PATH": str(self.sqlite_path),
            "AFTERWORD_STATE_DIR": str(self.directory / "state"),
        }

    def _report(self, name: str, done: int, total: int) -> None:
        if self._stopping.is_set():  # threads cannot be cancelled, so Ctrl-C would otherwise wait for the last jar
            raise JarsUnavailable(jar=name, problem="the start was cancelled")
        self._progress(name, done, total)
