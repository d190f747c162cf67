"""What every plain aiokafka client here has in common."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError

from streams.errors import BrokerUnavailable, TopicMissing
from streams.settings import Kafka


class Client(Protocol):
    async def start(self) -> None: ...


def client_options(kafka: Kafka) -> dict[str, Any]:
    """Keyword arguments that consumers, producers and admin clients share."""
    return {
        "bootstrap_servers": kafka.bootstrap_servers,
        "client_id": "afterword",
        "request_timeout_ms": int(kafka.request_timeout_seconds * 1000),
    }


async def start(client: Client, servers: str) -> None:
    """Starts any aiokafka client. Raises: BrokerUnavailable."""
    try:
        await client.start()
    except KafkaConnectionError as error:
        raise BrokerUnavailable(servers=servers, problem=str(error)) from None


@asynccontextmanager
async def admin_client(kafka: Kafka) -> AsyncIterator[AIOKafkaAdminClient]:
    """Raises: BrokerUnavailable."""
    client = AIOKafkaAdminClient(**client_options(kafka))
    try:
        await start(client, kafka.bootstrap_servers)
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def running_producer(kafka: Kafka) -> AsyncIterator[AIOKafkaProducer]:
    """Idempotent, `acks=all`, and the default partitioner (murmur2, as in the Java client).

    Raises: BrokerUnavailable.
    """
    producer = AIOKafkaProducer(**client_options(kafka), acks="all", enable_idempotence=True, linger_ms=5)
    try:
        await start(producer, kafka.bootstrap_servers)
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def running_consumer(kafka: Kafka, *topics: str, **options: Any) -> AsyncIterator[AIOKafkaConsumer]:
    """Reads committed records only and commits nothing by itself. Raises: BrokerUnavailable, TopicMissing."""
    await require_topics(kafka, *topics)
    ours = client_options(kafka) | {"enable_auto_commit": False, "isolation_level": "read_committed"}
    consumer = AIOKafkaConsumer(*topics, **ours | options)
    try:
        await start(consumer, kafka.bootstrap_servers)
        yield consumer
    finally:
        await consumer.stop()


async def require_topics(kafka: Kafka, *topics: str) -> None:
    """Clients wait for a topic that does not exist as if it were on its way.

    Raises: BrokerUnavailable, TopicMissing with the first one.
    """
    async with admin_client(kafka) as admin:
        existing = set(await admin.list_topics())
    for topic in topics:
        if topic not in existing:
            raise TopicMissing(topic=topic)
