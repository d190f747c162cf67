"""A broker with topics of the test's own, and records on them."""

from collections.abc import AsyncIterator, Callable

import pytest_asyncio
from aiokafka import AIOKafkaProducer

from afterword.operating.topics import ensure_topics
from afterword.streams.kafka.clients import running_producer
from afterword.streams.settings import Settings

PARTITIONS = 2


@pytest_asyncio.fixture
async def settings(make_settings: Callable[..., Settings]) -> Settings:
    made = make_settings(kafka={"partitions": PARTITIONS, "session_timeout_seconds": 6}, drain_seconds=10)
    await ensure_topics(made)
    return made


@pytest_asyncio.fixture
async def producer(settings: Settings) -> AsyncIterator[AIOKafkaProducer]:
    async with running_producer(settings.kafka) as started:
        yield started
