"""The embedded stack: Kafka and the path of the SQLite file, both in one directory."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from threading import Event
from types import MappingProxyType, TracebackType
from typing import Self

from afterword.embedded.claims import DirectoryLock
from afterword.embedded.errors import JarsUnavailable
from afterword.embedded.java import DownloadProgress, Jar, Java, ignore_progress
from afterword.embedded.kafka import Broker, Cluster, KafkaServer, Properties, has_brokers
from afterword.embedded.process import until_ready
from afterword.streams.tasks import gather_or_cancel


class EmbeddedStack:
    """Kafka on 127.0.0.1 and the stores' SQLite file. All data is in `directory` and survives a restart.

    `kafka` exists after the first start; tests kill, suspend and restart it.
    """

    kafka: KafkaServer

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 1,
        progress: DownloadProgress = ignore_progress,
        jars: Sequence[Jar] | None = None,
        record: bool = True,
        properties: Properties = MappingProxyType({}),
        broker: Callable[[Java, Path, int, Cluster], Broker] = Broker,
    ) -> None:
        """Prepare the stack without starting it.

        `jars` defaults to those of `jars.lock`; tests run other versions of Kafka. If `record` is true, the first
        broker on this machine records an archive of Kafka's classes, which halves the time of all later starts.
        `properties` are further properties of the brokers, which `broker` makes.
        """
        self.directory = directory.absolute()
        self._brokers = brokers
        self._record = record
        self._properties = properties
        self._broker = broker
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
            self.kafka = KafkaServer(
                self._java,
                self.directory / "kafka",
                self._brokers,
                (self._lock.fd,),
                record=self._record,
                properties=self._properties,
                broker=self._broker,
            )
            await self.start_kafka()
            undo.pop_all()

    async def stop(self) -> None:
        """Stop Kafka. Everything written is on disk afterwards."""
        self._stopping.set()
        try:
            if hasattr(self, "kafka"):
                await asyncio.to_thread(self.kafka.stop)
        finally:
            self._lock.release()

    async def start_kafka(self) -> None:
        """Start the brokers that are not running, and wait until each of them sees all the others."""
        await asyncio.to_thread(self.kafka.start)
        brokers = self.kafka.brokers
        await gather_or_cancel(
            *(until_ready(b.process, partial(has_brokers, b.address, self._brokers)) for b in brokers)
        )

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

    @property
    def state_directory(self) -> Path:
        return self.directory / "state"

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a worker on this stack."""
        return {
            "AFTERWORD_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "AFTERWORD_KAFKA__REPLICATION_FACTOR": str(self._brokers),
            "AFTERWORD_KAFKA__MIN_INSYNC_REPLICAS": str(min(2, self._brokers)),
            "AFTERWORD_SQLITE__PATH": str(self.sqlite_path),
            "AFTERWORD_STATE_DIR": str(self.state_directory),
        }

    def _report(self, name: str, done: int, total: int) -> None:
        if self._stopping.is_set():  # threads cannot be cancelled, so Ctrl-C would otherwise wait for the last jar
            raise JarsUnavailable(jar=name, problem="the start was cancelled")
        self._progress(name, done, total)
