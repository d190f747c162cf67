"""The way back after `messages` got more partitions: what has gone to the new ones moves to the old ones.

If there is a multiple of the partitions before, a key has stayed in its partition `p`, or moved to one that is `p`
modulo their number before, by every partitioner that takes a hash modulo the number of partitions. A record is
deleted from its new partition once the old one has it: so it is not moved again, and nothing is left that no worker
reads. After a kill in between, what was sent last is sent once more. That deletes nothing of what came after it:
nothing that comes after the deletion of a conversation is sent together with it.
"""

import asyncio
from collections.abc import Callable, Mapping

from aiokafka import AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from afterword.audit.log import Log
from afterword.schemas import ConversationDeleted, InvalidRecord, decode_input
from afterword.streams.errors import AfterwordError
from afterword.streams.kafka import admin_client, broker_errors, client_options, require_topics, send_copy, start_client
from afterword.streams.runtime.layouts import Layout
from afterword.streams.settings import Kafka
from afterword.topics import LARGE_RECORD_BYTES, layouts_of_messages

BATCH_RECORDS = 500
BATCH_BYTES = 8 * 1024 * 1024
"""Keys and values that are in memory, and on their way, at once."""
FOLLOW_SECONDS = 1.0
"""Pause between two looks for new records."""

Tell = Callable[[int, int, int], None]
"""Called with the new partition, the old one, and the number of records that were moved."""


class CannotReturn(AfterwordError):
    """{problem}"""


def homes(layouts: Mapping[str, Layout]) -> dict[int, int]:
    """Return the old partition of each new one. `layouts`: by group. Raises: CannotReturn."""
    found = max((layout.found for layout in layouts.values()), default=0)
    common = Layout(frozenset().union(*(layout.recorded for layout in layouts.values())), found)
    if not common.grown:
        names = " and ".join(layouts)
        raise CannotReturn(problem=f"the topic has {found} partitions, no more than the commits of {names} say")
    old = [partition for partition in range(found) if common.admits(partition)]
    if not old:
        read = ", ".join(map(str, sorted(common.recorded)))
        raise CannotReturn(problem=f"the topic has {found} partitions and was read with {read}: that is no multiple")
    return {partition: partition % len(old) for partition in range(found) if not common.admits(partition)}


async def bring_back(kafka: Kafka, tell: Tell, follow: bool = False) -> int:
    """Move the records of the new partitions of `messages`; return their number. With `follow` until cancelled.

    After an interruption some records may be moved a second time, to no effect.

    Raises: CannotReturn, BrokerUnavailable, TopicMissing, TopicStalled.
    """
    await require_topics(kafka, kafka.messages_topic)
    with broker_errors(kafka.bootstrap_servers):
        async with admin_client(kafka) as admin:
            moving = homes(await layouts_of_messages(admin, kafka))
            options = client_options(kafka) | {"acks": "all", "enable_idempotence": True}
            producer = AIOKafkaProducer(**options, max_request_size=LARGE_RECORD_BYTES)
            try:
                await start_client(producer, options)
                return await Mover(kafka.messages_topic, admin, Log(kafka, admin), producer, tell).run(moving, follow)
            finally:
                await producer.stop()


class Mover:
    def __init__(
        self, topic: str, admin: AIOKafkaAdminClient, log: Log, producer: AIOKafkaProducer, tell: Tell
    ) -> None:
        self._topic = topic
        self._admin = admin
        self._log = log
        self._producer = producer
        self._tell = tell

    async def run(self, moving: Mapping[int, int], follow: bool) -> int:
        total = 0
        while True:
            ends = await self._log.ends(self._topic)
            for partition, home in moving.items():
                source = TopicPartition(self._topic, partition)
                if count := await self._empty(source, home, ends[source]):
                    self._tell(partition, home, count)
                total += count
            if not follow:
                return total
            await asyncio.sleep(FOLLOW_SECONDS)

    async def _empty(self, source: TopicPartition, home: int, end: int) -> int:
        """Move what is before the offset `end`; return the number of records."""
        count, batch, size = 0, list[ConsumerRecord](), 0
        async for record in self._log.records_of(source, end):
            batch.append(record)
            size += len(record.key or b"") + len(record.value or b"")
            if len(batch) == BATCH_RECORDS or size >= BATCH_BYTES or deletes_conversation(record):
                count += await self._move(source, home, batch, record.offset + 1)
                batch, size = [], 0
        return count + (await self._move(source, home, batch, end) if batch else 0)

    async def _move(self, source: TopicPartition, home: int, batch: list[ConsumerRecord], end: int) -> int:
        sent = [await send_copy(self._producer, self._topic, record, home, record.timestamp) for record in batch]
        await asyncio.gather(*sent)
        await self._admin.delete_records({source: RecordsToDelete(end)})
        return len(batch)


def deletes_conversation(record: ConsumerRecord) -> bool:
    """Tell whether the record deletes all messages before it: a second one deletes those in between, too."""
    try:
        event = decode_input(record.key, record.value, record.headers, record.timestamp)
    except InvalidRecord:
        return False
    return isinstance(event, ConversationDeleted)
