"""Kafka, MongoDB and a place for Qdrant, below one directory."""

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Self

from afterword.embedded.jars import Progress
from afterword.embedded.java import Java
from afterword.embedded.kafka import Kafka
from afterword.embedded.locks import DirectoryLock
from afterword.embedded.mongo import Mongo
from afterword.embedded.ports import HOST
from afterword.embedded.readiness import accepts, has_brokers, until_ready


class EmbeddedStack:
    """Servers on 127.0.0.1 whose data is in `directory`: what was there when it stopped is there when it starts again.

    `kafka` and `mongo` exist from `start` on, for whoever wants to kill, suspend or restart them.
    """

    kafka: Kafka
    mongo: Mongo

    def __init__(self, directory: Path, *, brokers: int = 1, progress: Progress | None = None) -> None:
        self.directory = directory.absolute()
        self._brokers = brokers
        self._java = Java(progress=progress)
        self._lock = DirectoryLock(self.directory)

    async def start(self) -> None:
        """Returns when both servers answer.

        Raises: DirectoryInUse, JarsUnavailable, ClusterSizeDiffers, ProcessExited, StartTimeout.
        """
        await asyncio.to_thread(self._lock.acquire)
        try:
            await asyncio.to_thread(self._java.prepare)
            self._place()
            await asyncio.gather(self.start_kafka(), self.start_mongo())
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stops in order: what was written is on disk when this returns."""
        servers = [getattr(self, name) for name in ("kafka", "mongo") if hasattr(self, name)]
        await asyncio.gather(*(asyncio.to_thread(server.stop) for server in servers))
        self._lock.release()

    async def start_kafka(self) -> None:
        """Starts the brokers that are not running, and waits until each of them sees all."""
        await asyncio.to_thread(self.kafka.start)
        await asyncio.gather(
            *(
                until_ready(broker.process, lambda address=broker.address: has_brokers(address, self._brokers))
                for broker in self.kafka.brokers
            )
        )

    async def start_mongo(self) -> None:
        self.mongo.start()
        await until_ready(self.mongo.process, lambda: accepts(HOST, self.mongo.port))

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
        """For Qdrant's local mode: one process at a time."""
        return self.directory / "qdrant"

    @property
    def state_directory(self) -> Path:
        return self.directory / "state"

    def environment(self) -> dict[str, str]:
        """Variables that point a worker at this stack."""
        return {
            "AFTERWORD_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "AFTERWORD_KAFKA__REPLICATION_FACTOR": str(self._brokers),
            "AFTERWORD_KAFKA__MIN_INSYNC_REPLICAS": str(min(2, self._brokers)),
            "AFTERWORD_MONGO__URI": self.mongo_uri,
            "AFTERWORD_QDRANT__PATH": str(self.qdrant_path),
            "AFTERWORD_STATE_DIR": str(self.state_directory),
        }

    def _place(self) -> None:
        held = (self._lock.fd,)
        self.kafka = Kafka(self._java, self.directory / "kafka", self._brokers, held)
        self.mongo = Mongo(self._java, self.directory / "mongo", held)
