"""Reads topics, and waits for what others write and read there."""

from aiokafka import ConsumerRecord, TopicPartition

from afterword.streams.kafka.log_reader import open_log
from afterword.streams.settings import Kafka
from tests.waiting import SECONDS, until


async def records_on(kafka: Kafka, *topics: str, at_least: int = 0) -> list[ConsumerRecord]:
    """Wait for this many records, and return all of them, by topic and partition in the order of their offsets.

    Records of aborted transactions do not count.
    """
    found: list[ConsumerRecord] = []
    async with open_log(kafka) as log:

        async def are_there() -> bool:
            found[:] = [record for topic in topics async for record in log.records(topic)]
            return len(found) >= at_least

        await until(are_there)
    return found


async def until_read(kafka: Kafka, group_id: str, topic: str, seconds: float = SECONDS) -> dict[TopicPartition, int]:
    """Wait until the group has handled everything on the topic, and return the end of each partition."""
    async with open_log(kafka) as log:
        ends: dict[TopicPartition, int] = {}

        async def nothing_is_left() -> bool:
            ends.update(await log.ends(topic))
            return await log.left(group_id, topic, ends) == 0

        await until(nothing_is_left, seconds=seconds)
    return ends
