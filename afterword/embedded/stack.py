"""The embedded stack: Kafka and the path of the SQLite file, both in one directory."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Self

from afterword.embedded.claims import DirectoryLock
from afterword.embedded.errors import StartCancelled
from afterword.embedded.java import DownloadProgress, Jar, Java, ignore_progress
from afterword.embedded.kafka import PLAIN, Access, KafkaServer, has_brokers, record
from afterword.embedded.process import until_ready


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
        access: Access = PLAIN,
        jars: Sequence[Jar] | None = None,
        record: bool = True,
    ) -> None:
        """Prepare the stack without starting it.

        `jars` defaults to those of `jars.lock`; tests run other versions of Kafka. If `record` is true, the first start
        on this machine records an archive of Kafka's classes. That takes longer than one start saves, but it halves the
        time of all later starts.
        """
        self.directory = directory.absolute()
        self._brokers = brokers
        self._access = access
        self._record = record
        self._progress = progress
        self._stopping = Event()
        self._java = Java(progress=self._report, jars=jars)
        self._lock = DirectoryLock(self.directory)

    async def start(self) -> None:
        """Start Kafka and wait until it answers.

        Raises: DirectoryInUse, JarsUnavailable, ClusterSizeDiffers, FormatFailed, ProcessExited, StartTimeout.
        """
        self._stopping.clear()
        async with AsyncExitStack() as undo:
            await asyncio.to_thread(self._lock.acquire)
            undo.push_async_callback(self.stop)
            await asyncio.to_thread(self._java.prepare)
            if self._record and not self._java.is_recorded:
                await asyncio.to_thread(record, self._java, self._go_on)
            held = (self._lock.fd,)
            self.kafka = KafkaServer(self._java, self.directory / "kafka", self._brokers, held, self._access)
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
        await _all(
            *(until_ready(b.process, partial(has_brokers, b.address, self._brokers)) for b in self.kafka.brokers)
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
        self._go_on()
        self._progress(name, done, total)

    def _go_on(self) -> None:
        """Check whether to continue: threads cannot be cancelled, so Ctrl-C would otherwise wait for the last jar.

        Raises: StartCancelled.
        """
        if self._stopping.is_set():
            raise StartCancelled


async def _all(*steps: Awaitable[None]) -> None:
    for result in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
