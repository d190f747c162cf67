"""Reading a topic up to given offsets, repeatedly."""

from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition

from afterword.streams.kafka.log_reader import batches

PARTITION = TopicPartition("t", 0)


class Consumer:
    """A consumer of one partition with ten records."""

    def __init__(self) -> None:
        self.at = 0

    async def getmany(self, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Any]]:
        found = [SimpleNamespace(offset=offset) for offset in range(self.at, 10)][:max_records]
        self.at += len(found)
        return {PARTITION: found} if found else {}

    async def position(self, _: TopicPartition) -> int:
        return self.at

    def seek(self, _: TopicPartition, offset: int) -> None:
        self.at = offset


async def test_records_that_arrive_meanwhile_wait_for_the_next_call() -> None:
    consumer: Any = Consumer()
    read = [
        [record.offset async for records in batches(consumer, {PARTITION: end}) for record in records]
        for end in (4, 4, 10)
    ]
    assert read == [list(range(4)), [], list(range(4, 10))]
