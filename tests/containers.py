"""The official images, through Testcontainers."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import docker
import httpx
import pytest
import requests
import yaml
from aiokafka.errors import KafkaError
from docker.errors import DockerException
from docker.utils import parse_host
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo.errors import ConnectionFailure
from testcontainers.core.container import DockerContainer

from afterword.embedded.claims import free_ports
from afterword.embedded.process import NotReady
from afterword.embedded.stack import PROPERTIES, has_brokers

COMPOSE = Path(__file__).parents[1] / "docker-compose.yml"

READY_SECONDS = 120.0
POLL_SECONDS = 0.1
NOT_YET = (KafkaError, NotReady, OSError, ConnectionFailure, httpx.HTTPError)


@dataclass
class ContainerStack:
    directory: Path
    bootstrap_servers: str
    mongo_uri: str
    qdrant_url: str

    def environment(self) -> dict[str, str]:
        return {
            "AFTERWORD_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "AFTERWORD_MONGO__URI": self.mongo_uri,
            "AFTERWORD_QDRANT__URL": self.qdrant_url,
            "AFTERWORD_STATE_DIR": str(self.directory / "state"),
        }


@asynccontextmanager
async def container_stack(directory: Path) -> AsyncIterator[ContainerStack]:
    """Run the official images; skip the test if there is no container engine."""
    require_engine()
    async with AsyncExitStack() as running:
        kafka, mongo, qdrant = await asyncio.gather(_kafka(running), _mongo(running), _qdrant(running))
        yield ContainerStack(directory, kafka, mongo, qdrant)


def image_of(service: str) -> str:
    """Return a server's image from docker-compose.yml, the only place with the servers' versions."""
    found: str = yaml.safe_load(COMPOSE.read_text())["services"][service]["image"]
    return found


def require_engine() -> None:
    """Skip the test unless a container engine answers."""
    try:
        _connect(parse_host(os.environ.get("DOCKER_HOST")))
        with closing(docker.from_env()) as client:
            client.ping()
    except (DockerException, requests.RequestException, OSError) as error:
        pytest.skip(f"no container engine: {error}")


def _connect(address: str) -> None:
    """Raises: OSError where nobody listens on a Unix socket: docker's own client would leave its end open."""
    path = address.removeprefix("http+unix://")
    if path.startswith("/"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)


async def _kafka(running: AsyncExitStack) -> str:
    container = DockerContainer(image_of("kafka"))
    port = free_ports(1)[0]  # a broker must know its outer address before it starts
    host = await asyncio.to_thread(container.get_container_host_ip)
    for name, value in broker_properties(f"{host}:{port}").items():
        container.with_env("KAFKA_" + name.upper().replace(".", "_"), str(value))
    await _start(running, container.with_bind_ports(9092, port))
    await _until(partial(has_brokers, f"{host}:{port}"))
    return f"{host}:{port}"


def broker_properties(address: str) -> dict[str, str]:
    """Return the embedded broker's properties, at the address that the engine gives; one variable replaces all of the
    image's own."""
    own = {
        "controller.quorum.voters": "1@localhost:9093",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://{address}",
    }
    return {name: own.get(name, value) for name, value in PROPERTIES.items() if name != "log.dirs"}


async def _mongo(running: AsyncExitStack) -> str:
    address = await _exposed(running, DockerContainer(image_of("mongo")), 27017)
    uri = f"mongodb://{address}/?directConnection=true"
    await _until(partial(_ping, uri))
    return uri


async def _ping(uri: str) -> None:
    client: AsyncIOMotorClient[Any] = AsyncIOMotorClient(uri, serverSelectionTimeoutMS=1_000)
    try:
        await client.admin.command("ping")
    finally:
        client.close()


async def _qdrant(running: AsyncExitStack) -> str:
    url = f"http://{await _exposed(running, DockerContainer(image_of('qdrant')), 6333)}"
    await _until(partial(_is_ready, url))
    return url


async def _is_ready(url: str) -> None:
    async with httpx.AsyncClient() as client:
        (await client.get(f"{url}/readyz")).raise_for_status()


async def _exposed(running: AsyncExitStack, container: DockerContainer, port: int) -> str:
    await _start(running, container.with_exposed_ports(port))
    return f"{container.get_container_host_ip()}:{container.get_exposed_port(port)}"


async def _start(running: AsyncExitStack, container: DockerContainer) -> None:
    await asyncio.to_thread(container.start)
    running.push_async_callback(asyncio.to_thread, container.stop)


async def _until(probe: Callable[[], Awaitable[None]]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            return await probe()
        except NOT_YET:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(POLL_SECONDS)
