"""`messages` gets more partitions under an archiver: it reads none of the new ones, and says so."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import pytest_asyncio
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from structlog.testing import capture_logs

from afterword.streams.kafka import admin_client, running_producer
from afterword.streams.settings import Settings
from tests.integration.consumers.conftest import PARTITIONS
from tests.integration.consumers.test_archiver import archiving, message, until

GROWN = 2 * PARTITIONS


@pytest_asyncio.fixture
async def admin(settings: Settings) -> AsyncIterator[AIOKafkaAdminClient]:
    async with admin_client(settings.kafka) as client:
        yield client


async def send_to_all(settings: Settings, partitions: int, first: int) -> None:
    async with running_producer(settings.kafka) as producer:
        for partition in range(partitions):
            event = message(first + partition)
            await send_to(producer, settings, partition, event.to_json())


async def send_to(producer: AIOKafkaProducer, settings: Settings, partition: int, value: bytes) -> None:
    topic = settings.kafka.messages_topic
    await producer.send_and_wait(topic, value, key=b"conversation", partition=partition)


async def commits(admin: AIOKafkaAdminClient, settings: Settings) -> dict[int, tuple[int, str]]:
    found = await admin.list_consumer_group_offsets(settings.kafka.archiver_id)
    return {source.partition: tuple(one) for source, one in found.items()}


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[str]:
    """Run an archiver; yields the address of its readiness."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    health = settings.health.model_copy(update={"host": "127.0.0.1", "port": port})
    async with archiving(settings.model_copy(update={"health": health})):
        yield f"http://127.0.0.1:{port}/readyz"


async def reasons(address: str) -> dict[str, str]:
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        found: dict[str, str] = json.loads(await answer.text()).get("reasons", {})
        return found


async def is_told(address: str) -> bool:
    return (await reasons(address)).get("partitions") == "source_grown"


async def test_new_partitions_wait_under_a_running_archiver_and_under_the_next(
    settings: Settings, admin: AIOKafkaAdminClient
) -> None:
    async def is_committed(offset: int) -> bool:
        """Return whether that is committed of each old partition, and nothing of others."""
        wanted = dict.fromkeys(range(PARTITIONS), (offset, f"partitions={PARTITIONS}"))
        return await commits(admin, settings) == wanted

    await send_to_all(settings, PARTITIONS, first=0)
    with capture_logs() as logs:
        async with running(settings) as address:
            await until(partial(is_committed, 1))
            assert await reasons(address) == {}
            await admin.create_partitions({settings.kafka.messages_topic: NewPartitions(GROWN)})
            await until(partial(is_told, address))
    assert [line["log_level"] for line in logs if line["event"] == "source_grown"] == ["error"]
    await send_to_all(settings, GROWN, first=10)
    async with running(settings) as address:
        await until(partial(is_committed, 2))
        await until(partial(is_told, address))
        assert await is_committed(2)
