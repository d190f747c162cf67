"""The summarizer's steps by hand, in its order: aiokafka, motor, qdrant-client in local mode.

Many conversations at a time, each in order, as many episodes in hand for each partition as ours has; offsets once a
second. No models, no retries, no check of what is stored already beyond the same reads, no metrics: whoever crashes in
the middle has half an episode, and a duplicate key ends the program.
"""

import asyncio
import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from pymongo import UpdateOne
from qdrant_client import AsyncQdrantClient, models

from afterword.streams.stores.sparse import document_vector
from benchmarks.programs.stores import Stores, database, from_environment

IN_HAND = 64
COMMIT_SECONDS = 1.0
COLLECTION = "episodes"
NAMESPACE = UUID(int=1)
TIMES = ("started_at", "ended_at", "closed_at", "created_at")
COPIED = ("conversation_id", "user_id", "agent_id", "tenant_id", "ordinal", "message_count", "metrics")
PAYLOAD = (
    *("event_id", "episode_id", "conversation_id", "user_id", "agent_id", "tenant_id", "message_ids"),
    *("revision", "ordinal", "short_summary", *TIMES),
)


def summary_of(episode: dict[str, Any], so_far: str) -> dict[str, Any]:
    """The event: the same fields, with texts of the same length as the scripted LLM's."""
    told = f"Episode {episode['ordinal']} has {len(episode['messages'])} messages."
    return {
        "event_id": f"{episode['episode_id']}:{episode['revision']}",
        "episode_id": episode["episode_id"],
        "revision": episode["revision"],
        **{name: episode.get(name) for name in COPIED},
        "title": f"Episode {episode['ordinal']}",
        "short_summary": told,
        "long_summary": f"{told} It ran from {episode['started_at'][11:16]} to {episode['ended_at'][11:16]}.",
        "rolling_summary": f"{so_far} {told}"[-2000:],
        "message_ids": [message["id"] for message in episode["messages"]],
        "quality": {"source": "llm", "reason": None, "grounding": 1.0, "unsupported": []},
        "model": "scripted",
        "usage": {"prompt_tokens": len(episode["messages"]), "completion_tokens": 1},
        "compression": {"tokens_before": episode["token_count"], "tokens_after": 20, "ratio": 0.9, "events_before": 1},
        **{name: episode[name] for name in TIMES[:3]},
        "created_at": datetime.now(UTC).isoformat(),
    }


class Summarizer:
    def __init__(self, stores: Stores, producer: AIOKafkaProducer) -> None:
        mongo = database(stores)
        self._episodes, self._messages = mongo["episodes"], mongo["messages"]
        self._rows, self._conversations = mongo["conversation_summaries"], mongo["conversations"]
        self._qdrant = AsyncQdrantClient(path=str(stores.qdrant))
        self._producer = producer
        self._summaries = stores.summaries

    async def prepare(self) -> None:
        sparse = models.SparseVectorParams(modifier=models.Modifier.IDF)
        await self._qdrant.create_collection(
            COLLECTION, vectors_config={}, sparse_vectors_config={"summary": sparse, "text": sparse}
        )

    async def summarise(self, value: bytes) -> None:
        episode = orjson.loads(value)
        conversation = episode["conversation_id"]
        if await self._episodes.find_one({"_id": episode["episode_id"]}):
            return
        row = await self._rows.find_one({"conversation_id": conversation}, sort=[("row", -1)])
        await self._conversations.find_one({"_id": conversation})
        summary = summary_of(episode, row["content"] if row else "")
        times = {name: datetime.fromisoformat(summary[name]) for name in TIMES}
        await self._episodes.insert_one(
            {**summary, **times, "_id": episode["episode_id"], "fingerprint": episode["fingerprint"], "overlap_ids": []}
        )
        await self._store_row(conversation, summary, row)
        await self._store_conversation(conversation, summary)
        await self._messages.bulk_write(
            [
                UpdateOne(
                    {"_id": f"{conversation}:{message}"}, {"$set": {"episode_id": episode["episode_id"]}}, upsert=True
                )
                for message in summary["message_ids"]
            ],
            ordered=False,
        )
        await self._store_point(episode, summary)
        await self._producer.send_and_wait(self._summaries, orjson.dumps(summary), conversation.encode())

    async def _store_row(self, conversation: str, summary: dict[str, Any], latest: Any) -> None:
        row = {
            "_id": f"{conversation}:1",
            "conversation_id": conversation,
            "row": 1,
            "content": summary["rolling_summary"],
            "token_count": len(summary["rolling_summary"]) // 4,
            "first_ordinal": latest["first_ordinal"] if latest else summary["ordinal"],
            "last_ordinal": summary["ordinal"],
            "updated_at": datetime.now(UTC),
        }
        if latest is None:
            await self._rows.insert_one(row)
        else:
            await self._rows.replace_one({"_id": row["_id"], "last_ordinal": latest["last_ordinal"]}, row)

    async def _store_conversation(self, conversation: str, summary: dict[str, Any]) -> None:
        await self._conversations.update_one(
            {"_id": conversation, "last_ordinal": {"$lt": summary["ordinal"]}},
            {
                "$set": {
                    "last_ordinal": summary["ordinal"],
                    "title": summary["title"],
                    "updated_at": datetime.now(UTC),
                },
                "$inc": {"episode_count": 1, "message_count": summary["message_count"]},
                "$setOnInsert": {"user_id": summary["user_id"], "tenant_id": summary["tenant_id"]},
            },
            upsert=True,
        )

    async def _store_point(self, episode: dict[str, Any], summary: dict[str, Any]) -> None:
        texts = {
            "summary": f"{summary['title']} {summary['short_summary']} {summary['long_summary']}",
            "text": "\n".join(message["content"] for message in episode["messages"]),
        }
        found = {name: document_vector(text) for name, text in texts.items()}
        point = models.PointStruct(
            id=str(uuid5(NAMESPACE, summary["episode_id"])),
            vector={
                name: models.SparseVector(indices=list(v.indices), values=list(v.values)) for name, v in found.items()
            },
            payload={name: summary[name] for name in PAYLOAD},
        )
        await self._qdrant.upsert(COLLECTION, points=[point], wait=True)


class Reader:
    """Hands records to the summarizer: of one conversation one after the other."""

    def __init__(self, consumer: AIOKafkaConsumer, summarizer: Summarizer) -> None:
        self._consumer = consumer
        self._summarizer = summarizer
        self._turns: dict[bytes, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._unfinished: dict[TopicPartition, set[int]] = defaultdict(set)
        self._next: dict[TopicPartition, int] = {}

    async def run(self, partitions: int) -> None:
        free, committed = asyncio.Semaphore(IN_HAND * partitions), time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            while True:
                for source, records in (await self._consumer.getmany(timeout_ms=200, max_records=IN_HAND)).items():
                    for record in records:
                        await free.acquire()
                        self._unfinished[source].add(record.offset)
                        self._next[source] = record.offset + 1
                        tasks.create_task(self._one(source, record, free))
                if time.monotonic() - committed >= COMMIT_SECONDS and self._next:
                    await self._consumer.commit(
                        {source: min(self._unfinished[source], default=end) for source, end in self._next.items()}
                    )
                    committed = time.monotonic()

    async def _one(self, source: TopicPartition, record: Any, free: asyncio.Semaphore) -> None:
        async with self._turns[record.key]:
            await self._summarizer.summarise(record.value)
        self._unfinished[source].discard(record.offset)
        free.release()


async def main() -> None:
    stores = from_environment()
    consumer = AIOKafkaConsumer(
        stores.source,
        bootstrap_servers=stores.bootstrap,
        group_id=stores.group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    producer = AIOKafkaProducer(bootstrap_servers=stores.bootstrap, acks="all", enable_idempotence=True)
    async with consumer, producer:
        summarizer = Summarizer(stores, producer)
        await summarizer.prepare()
        await Reader(consumer, summarizer).run(len(consumer.partitions_for_topic(stores.source) or (0,)))


if __name__ == "__main__":
    asyncio.run(main())
