"""Commits offsets for a consumer group without consuming anything."""

from collections.abc import Mapping

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from afterword.streams.settings import Kafka


async def commit_offsets(
    kafka: Kafka, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
) -> None:
    """Commit only these offsets: with automatic commits, a consumer also commits its position when it stops."""
    async with AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, group_id=group_id, enable_auto_commit=False
    ) as consumer:
        consumer.assign(list(offsets))
        await consumer.commit(dict(offsets))
