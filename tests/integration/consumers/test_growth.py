"""`messages` gets more partitions under an archiver, which stops and says so."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from afterword.consumers.archiver import run_archiver
from afterword.streams.kafka import admin_client, running_producer
from afterword.streams.runtime.errors import SourceGrown
from afterword.streams.settings import Settings
from tests.integration.consumers.conftest import PARTITIONS
from tests.integration.consumers.test_archiver import SECONDS, message, until

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


async def test_a_running_archiver_stops_when_messages_gets_more_partitions_and_the_next_one_does_not_start(
    settings: Settings, admin: AIOKafkaAdminClient
) -> None:
    topic = settings.kafka.messages_topic
    read = dict.fromkeys(range(PARTITIONS), (1, f"partitions={PARTITIONS}"))

    async def is_read() -> bool:
        return await commits(admin, settings) == read

    await send_to_all(settings, PARTITIONS, first=0)
    running = asyncio.create_task(run_archiver(settings, asyncio.Event()))
    await until(is_read)
    await admin.create_partitions({topic: NewPartitions(GROWN)})
    said = f"{topic} has {GROWN} partitions, and was read while it had {PARTITIONS}"
    async with asyncio.timeout(SECONDS):
        with pytest.raises(SourceGrown, match=said):
            await running
        await send_to_all(settings, GROWN, first=10)
        with pytest.raises(SourceGrown, match=said):
            await run_archiver(settings, asyncio.Event())
    assert await is_read()
