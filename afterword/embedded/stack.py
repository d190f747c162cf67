"""Kafka, MongoDB and a directory for Qdrant, below one directory."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Self

from afterword.embedded.claims import HOST, DirectoryLock
from afterword.embedded.errors import StartCancelled
from afterword.embedded.java import DownloadProgress, Jar, Java, ignore_progress
from afterword.embedded.kafka import PLAIN, Access, KafkaServer, has_brokers, record
from afterword.embedded.mongo import MongoServer
from afterword.embedded.process import accepts, until_ready


class EmbeddedStack:
    """Servers on 127.0.0.1 whose data is in `directory` and survives a restart.

    `kafka` and `mongo` exist once it was started; tests kill, suspend and restart them.
    """

    kafka: KafkaServer
    mongo: MongoServer

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
        """`jars`: by default those of `jars.lock`; tests run other versions of Kafka.

        `record`: at the first start on this machine, write an archive of Kafka's classes, which halves the time of all
        later starts, and takes longer than it saves once.
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
        """Start both servers and wait until they answer.

        Raises: DirectoryInUse, JarsUnavailable, CompilationFailed, ClusterSizeDiffers, FormatFailed, ProcessExited,
        StartTimeout.
        """
        self._stopping.clear()
        async with AsyncExitStack() as undo:
            await asyncio.to_thread(self._lock.acquire)
            undo.push_async_callback(self.stop)
            await asyncio.to_thread(self._java.prepare)
            if self._record and not self._java.is_recorded:
                await asyncio.to_thread(record, self._java, self._go_on)
            self._place()
            await _all(self.start_kafka(), self.start_mongo())
            undo.pop_all()

    async def stop(self) -> None:
        """Stop both servers in order; everything written is on disk afterwards."""
        self._stopping.set()
        servers = [getattr(self, name) for name in ("kafka", "mongo") if hasattr(self, name)]
        try:
            await _all(*(asyncio.to_thread(server.stop) for server in servers))
        finally:
            self._lock.release()

    async def start_kafka(self) -> None:
        """Start the brokers that are not running, and wait until each of them knows all."""
        await asyncio.to_thread(self.kafka.start)
        await _all(
            *(until_ready(b.process, partial(has_brokers, b.address, self._brokers)) for b in self.kafka.brokers)
        )

    async def start_mongo(self) -> None:
        """Start MongoDB unless it runs, and wait until it answers."""
        await asyncio.to_thread(self.mongo.start)
        await until_ready(self.mongo.process, partial(accepts, HOST, self.mongo.port))

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
    def mongo_uri(self) -> str:
        return self.mongo.uri

    @property
    def qdrant_path(self) -> Path:
        """Directory of the index."""
        return self.directory / "qdrant"

    @property
    def state_directory(self) -> Path:
        return self.directory / "state"

    def environment(self) -> dict[str, str]:
        """Environment variables of a worker on this stack."""
        return {
            "AFTERWORD_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "AFTERWORD_KAFKA__REPLICATION_FACTOR": str(self._brokers),
            "AFTERWORD_KAFKA__MIN_INSYNC_REPLICAS": str(min(2, self._brokers)),
            "AFTERWORD_MONGO__URI": self.mongo_uri,
            "AFTERWORD_QDRANT__PATH": str(self.qdrant_path),
            "AFTERWORD_STATE_DIR": str(self.state_directory),
        }

    def _report(self, name: str, done: int, total: int) -> None:
        self._go_on()
        self._progress(name, done, total)

    def _go_on(self) -> None:
        """Raises: StartCancelled: threads cannot be cancelled, so without it Ctrl-C would wait for the last jar."""
        if self._stopping.is_set():
            raise StartCancelled

    def _place(self) -> None:
        held = (self._lock.fd,)
        self.kafka = KafkaServer(self._java, self.directory / "kafka", self._brokers, held, self._access)
        self.mongo = MongoServer(self._java, self.directory / "mongo", held)


async def _all(*steps: Awaitable[None]) -> None:
    """Run every step to its end, then raise the first error."""
    for result in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
