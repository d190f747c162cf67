"""The servers that integration tests run against: embedded, or the official images through Testcontainers."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from afterword.embedded import EmbeddedStack

VARIABLE = "AFTERWORD_TEST_STACK"
KAFKA_IMAGE = "apache/kafka:4.1.1"
MONGO_IMAGE = "mongo:8.0.15"
QDRANT_IMAGE = "qdrant/qdrant:v1.16.0"


class Stack(Protocol):
    """What tests may rely on, whichever stack it is."""

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def mongo_uri(self) -> str: ...

    def environment(self) -> dict[str, str]:
        """Variables that point a worker at this stack."""
        ...


@asynccontextmanager
async def running_stack(directory: Path) -> AsyncIterator[Stack]:
    if os.environ.get(VARIABLE, "embedded") == "containers":
        async with _containers(directory) as stack:
            yield stack
    else:
        async with EmbeddedStack(directory) as stack:
            yield stack


@dataclass
class ContainerStack:
    directory: Path
    bootstrap_servers: str
    mongo_uri: str
    qdrant_url: str
    containers: dict[str, Any] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        return {
            "AFTERWORD_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "AFTERWORD_MONGO__URI": self.mongo_uri,
            "AFTERWORD_QDRANT__URL": self.qdrant_url,
            "AFTERWORD_STATE_DIR": str(self.directory / "state"),
        }


@asynccontextmanager
async def _containers(directory: Path) -> AsyncIterator[Stack]:
    from testcontainers.community.kafka import KafkaContainer
    from testcontainers.community.mongodb import MongoDbContainer
    from testcontainers.community.qdrant import QdrantContainer

    _require_engine()
    async with AsyncExitStack() as started:
        kafka = await _started(started, KafkaContainer(KAFKA_IMAGE).with_kraft())
        mongo = await _started(started, MongoDbContainer(MONGO_IMAGE))
        qdrant = await _started(started, QdrantContainer(QDRANT_IMAGE))
        yield ContainerStack(
            directory=directory,
            bootstrap_servers=kafka.get_bootstrap_server(),
            mongo_uri=mongo.get_connection_url(),
            qdrant_url=f"http://{qdrant.rest_host_address}",
            containers={"kafka": kafka, "mongo": mongo, "qdrant": qdrant},
        )


def _require_engine() -> None:
    from docker.errors import DockerException
    from testcontainers.core.docker_client import DockerClient

    try:
        DockerClient().client.ping()
    except DockerException as error:
        pytest.skip(f"{VARIABLE}=containers needs a container engine: {error}")


async def _started(stack: AsyncExitStack, container: Any) -> Any:
    await asyncio.to_thread(container.start)
    stack.push_async_callback(asyncio.to_thread, container.stop)
    return container
