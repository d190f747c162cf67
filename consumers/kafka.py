"""What every plain aiokafka client here has in common."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError

from afterword.consumers import refusal
from afterword.streams.connection import security
from afterword.streams.errors import BrokerRefuses, BrokerUnavailable, TopicMissing
from afterword.streams.settings import Kafka


class Client(Protocol):
    async def start(self) -> None: ...


def client_options(kafka: Kafka) -> dict[str, Any]:
    """Keyword arguments that consumers, producers and admin clients share.

    Raises: ConfigurationError when a file that they need cannot be used.
    """
    return {
        "bootstrap_servers": kafka.bootstrap_servers,
        "client_id": "afterword",
        "request_timeout_ms": int(kafka.request_timeout_seconds * 1000),
        **security(kafka),
    }


async def start(client: Client, options: Mapping[str, Any]) -> None:
    """Starts any aiokafka client, made with these options. Raises: BrokerUnavailable, of which BrokerRefuses is one."""
    try:
        if refusal.is_silent(options):
            await _require_acceptance(options)
        await client.start()
    except KafkaConnectionError as error:
        await _require_acceptance(options)
        raise BrokerUnavailable(servers=options["bootstrap_servers"], problem=str(error)) from None


async def _require_acceptance(options: Mapping[str, Any]) -> None:
    if problem := await refusal.reason(options):
        raise BrokerRefuses(servers=options["bootstrap_servers"], problem=problem) from None


@asynccontextmanager
async def admin_client(kafka: Kafka, **options: Any) -> AsyncIterator[AIOKafkaAdminClient]:
    """Raises: BrokerUnavailable."""
    given = client_options(kafka) | options
    client = AIOKafkaAdminClient(**given)
    try:
        await start(client, given)
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def running_producer(kafka: Kafka) -> AsyncIterator[AIOKafkaProducer]:
    """Idempotent, `acks=all`, and the default partitioner (murmur2, as in the Java client).

    Raises: BrokerUnavailable.
    """
    options = client_options(kafka)
    producer = AIOKafkaProducer(**options, acks="all", enable_idempotence=True, linger_ms=5)
    try:
        await start(producer, options)
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def running_consumer(
    kafka: Kafka, *topics: str, listener: ConsumerRebalanceListener | None = None, **options: Any
) -> AsyncIterator[AIOKafkaConsumer]:
    """Reads committed records only and commits nothing by itself. Raises: BrokerUnavailable, TopicMissing."""
    await require_topics(kafka, *topics)
    ours = client_options(kafka)
    defaults = {"enable_auto_commit": False, "isolation_level": "read_committed"}
    consumer = AIOKafkaConsumer(**ours | defaults | options)
    consumer.subscribe(topics, listener=listener)
    try:
        await start(consumer, ours)
        yield consumer
    finally:
        await consumer.stop()


async def require_topics(kafka: Kafka, *topics: str, **options: Any) -> None:
    """Clients wait for a topic that does not exist as if it were on its way.

    `options`: of the client that asks, on top of the settings. Raises: BrokerUnavailable, TopicMissing with the first
    one.
    """
    async with admin_client(kafka, **options) as admin:
        existing = set(await admin.list_topics())
    for topic in topics:
        if topic not in existing:
            raise TopicMissing(topic=topic)
