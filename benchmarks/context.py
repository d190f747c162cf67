"""`Memory.context` on conversations of 10, 1,000 and 100,000 messages: how long it takes, and what the server sends.

Each conversation is in a database of its own. What the server sends, and how many messages it counts, is the same on
MongoDB and on the embedded server: that is the second figure.
"""

import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from motor.motor_asyncio import AsyncIOMotorClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from afterword.embedded import EmbeddedStack
from afterword.memory import Memory
from afterword.schemas import MessageCreated
from afterword.schemas.ids import episode_id, row_id
from afterword.streams.stores import mongo
from afterword.streams.stores.documents import message_document
from afterword.streams.stores.index import Query, Recalled
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.stores.mongo import MongoEpisodes, MongoMessages
from afterword.streams.tokens import count_tokens
from benchmarks.llm import BEGIN, OPENING, TEXTS, name_of
from benchmarks.quantiles import quantile
from benchmarks.suite import Finding, Form, Line

CALLS = {10: 20, 1_000: 20, 100_000: 3}
"""Number of reads of a conversation's context, by its number of messages."""
SHORT_CALLS = {10: 5, 1_000: 5}
EPISODE_MESSAGES = 10
PENDING = 6
"""Messages that no episode has yet, of those."""
FLAT = 1.5
"""The longest conversation's figure to the shortest one's, at most."""
NAME = name_of(1)


@dataclass
class Traffic(CommandListener):
    """Requests and responses of one driver."""

    commands: int = 0
    documents: int = 0
    """Sent by the server."""
    counted: int = 0
    """Messages that it counted to answer."""

    def started(self, event: CommandStartedEvent) -> None:
        """Nothing is known yet."""

    def succeeded(self, event: CommandSucceededEvent) -> None:
        self.commands += 1
        cursor = event.reply.get("cursor", {})
        batch = cursor.get("firstBatch") or cursor.get("nextBatch") or []
        self.documents += len(batch)
        self.counted += sum(group["messages"] for group in batch if "messages" in group)

    def failed(self, event: CommandFailedEvent) -> None:
        """Ignore failures, which the caller gets."""


@dataclass(frozen=True)
class Measured:
    messages: int
    seconds: Sequence[float]
    """Duration of each call."""
    commands: float
    documents: float
    counted: float
    """Mean per call."""


def message_documents(count: int) -> Iterator[dict[str, Any]]:
    """Documents as archiver and summarizer leave them: all but the last few are in episodes."""
    for number in range(count):
        message = MessageCreated(
            id=f"m-{number}",
            conversation_id=NAME,
            user_id="u",
            role="user" if number % 2 == 0 else "assistant",
            content=f"{OPENING} {number}",
            sent_at=BEGIN + timedelta(seconds=number),
        )
        document = message_document(ArchivedMessage(message, 0, number)) | {"_id": f"{NAME}:m-{number}"}
        ordinal = number // EPISODE_MESSAGES + 1
        told = number < count - PENDING
        yield document | ({"episode_id": episode_id(NAME, ordinal)} if told else {})


async def fill(database: mongo.MongoDatabase, count: int) -> None:
    await mongo.ensure_indexes(database)
    for batch in mongo.batches(list(message_documents(count))):
        await database["messages"].insert_many(list(batch), ordered=False)
    told, now = count - PENDING, datetime.now(UTC)
    episodes = -(-told // EPISODE_MESSAGES)
    tokens = count_tokens(TEXTS["rolling_summary"])
    ordinals = {"last_ordinal": episodes, "last_revision": 1, "updated_at": now}
    await database["conversations"].insert_one(
        {
            "_id": NAME,
            "title": TEXTS["title"],
            "user_id": "u",
            "tenant_id": None,
            "episode_count": episodes,
            "message_count": told,
            "token_count": told * 20,
            **ordinals,
        }
    )
    await database["conversation_summaries"].insert_one(
        {
            "_id": row_id(NAME, 1),
            "conversation_id": NAME,
            "row": 1,
            "content": TEXTS["rolling_summary"],
            "token_count": tokens,
            "first_ordinal": 1,
            "as_of": -1,
            **ordinals,
        }
    )


async def nothing(_: Query) -> list[Recalled]:
    """Search without results: context needs none."""
    return []


@asynccontextmanager
async def connected(uri: str, name: str, traffic: Traffic) -> AsyncIterator[mongo.MongoDatabase]:
    client: Any = AsyncIOMotorClient(uri, tz_aware=True, event_listeners=[traffic])
    try:
        yield client[name]
    finally:
        client.close()


async def measured(uri: str, count: int, calls: int) -> Measured:
    traffic = Traffic()
    async with connected(uri, f"context-{count}", traffic) as database:
        await fill(database, count)
        memory = Memory(MongoEpisodes(database), MongoMessages(database), nothing)
        await memory.context(NAME)
        before, seconds = (traffic.commands, traffic.documents, traffic.counted), []
        for _ in range(calls):
            began = time.monotonic()
            context = await memory.context(NAME)
            seconds.append(time.monotonic() - began)
            if context is None or len(context.messages) != PENDING:
                raise RuntimeError("the context does not have the messages that are in no episode")
        after = traffic.commands, traffic.documents, traffic.counted
        return Measured(count, seconds, *((new - old) / calls for old, new in zip(before, after, strict=True)))


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    """The guard compares what is read, which no noise changes."""
    calls = SHORT_CALLS if form.short else CALLS
    async with EmbeddedStack(directory / "stack") as stack:
        return [finding([await measured(stack.mongo_uri, count, often) for count, often in calls.items()])]


def finding(found: Sequence[Measured]) -> Finding:
    notes = [
        "Documents, and messages counted, are what the server found for one call: the same on both.",
    ]
    read = [one.documents + one.counted for one in found]
    lines = [line(one, found[0]) for one in found]
    return Finding("context() by the conversation's length", lines, notes, {"context/read": read[0] / read[-1]})


def line(one: Measured, shortest: Measured) -> Line:
    p50 = statistics.median(one.seconds)
    figures = {
        "p50": f"{p50 * 1000:,.1f} ms",
        "p99": f"{quantile(one.seconds, 0.99) * 1000:,.1f} ms",
        "commands": f"{one.commands:.0f}",
        "documents": f"{one.documents:.0f}",
        "messages counted": f"{one.counted:.0f}",
    }
    met = p50 <= FLAT * statistics.median(shortest.seconds)
    return Line(f"{one.messages:,} messages", figures, None, f"p50 ≤ {FLAT} × the shortest's", met)
