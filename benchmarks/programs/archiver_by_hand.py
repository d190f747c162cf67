"""The archiver's documents into MongoDB by hand: aiokafka, bulk writes of upserts, one commit after each batch."""

import asyncio
from datetime import datetime
from typing import Any

import orjson
from aiokafka import AIOKafkaConsumer
from pymongo import UpdateOne

from afterword.schemas import MessageCreated
from afterword.streams.tokens import count_tokens
from benchmarks.programs.stores import database, from_environment

MAX_BATCH = 2000
MAX_WRITES = 1000
"""Limit of one bulk write, which both servers take."""
INDEXES = (
    ("conversation_id", "sent_at", "source.offset"),
    ("conversation_id", "source.offset"),
    ("conversation_id", "episode_id", "sent_at", "source.offset"),
)
"""Indexes without which nobody could read a conversation; the same as ours."""
EMPTY = {
    name: field.get_default(call_default_factory=True)
    for name, field in MessageCreated.model_fields.items()
    if not field.is_required()
}
"""Every document has every field, so that its readers need not ask."""


def upsert(record: Any) -> UpdateOne:
    """Upsert that keeps what was there first."""
    message = EMPTY | orjson.loads(record.value)
    message["sent_at"] = datetime.fromisoformat(message["sent_at"])
    message["source"] = {"partition": record.partition, "offset": record.offset}
    message["token_count"] = count_tokens(message["content"])
    key = f"{message['conversation_id']}:{message['id']}"
    return UpdateOne({"_id": key}, {"$setOnInsert": message}, upsert=True)


async def main() -> None:
    stores = from_environment()
    consumer = AIOKafkaConsumer(
        stores.source,
        bootstrap_servers=stores.bootstrap,
        group_id=stores.group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    messages = database(stores)["messages"]
    for keys in INDEXES:
        await messages.create_index([(key, 1) for key in keys])
    async with consumer:
        while True:
            batch = await consumer.getmany(timeout_ms=500, max_records=MAX_BATCH)
            writes = [upsert(record) for records in batch.values() for record in records]
            for start in range(0, len(writes), MAX_WRITES):
                await messages.bulk_write(writes[start : start + MAX_WRITES], ordered=False)
            if batch:
                await consumer.commit({source: records[-1].offset + 1 for source, records in batch.items()})


if __name__ == "__main__":
    asyncio.run(main())
