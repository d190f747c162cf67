"""The embedded stack: Kafka and the path of the SQLite file, both in one directory."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from threading import Event
from types import MappingProxyType, TracebackType
from typing import Self

from afterword.embedded.claims import DirectoryLock
from afterword.embedded.errors import JarsUnavailable
from afterword.embedded.java import DownloadProgress, Jar, Java, ignore_progress
from afterword.embedded.kafka import Broker, Properties, has_brokers
from afterword.embedded.process import until_ready


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

        Raises: DirectoryInUse, JarsUnavailable, ProcessExited, StartTimeout.
        """
        self._stopping.clear()
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
