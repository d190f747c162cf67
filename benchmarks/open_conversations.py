"""Many conversations with a message pending, as they are in the changelogs: written there directly.

The rows are those that the segmenter itself makes of one message, with the ids and deadline of each conversation; the
transactions are the engine's. Ten times as fast as having a worker read a million messages, and the same records.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aiokafka import TopicPartition
from aiokafka.partitioner import DefaultPartitioner

from afterword.streams.runtime import Options
from afterword.streams.runtime.changelog import Bookmark, new_lineage
from afterword.streams.runtime.options import Clients
from afterword.streams.runtime.transaction import TransactionalProducer
from afterword.streams.segmenter import state as keys
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.segmenter.state import CONVERSATIONS, DEADLINE_BYTES, MESSAGES, digest_of
from afterword.streams.settings import Episodes
from benchmarks.deployment import Deployment
from benchmarks.state import message

DEADLINES_FROM_SECONDS, DEADLINES_FOR_SECONDS = 3600, 3600
"""Seconds from now until the silence of the first one is noticed, and over which those of the others are spread."""
IN_TRANSACTION = 2000
OPEN_SECONDS = 60.0

Rows = dict[bytes, bytes]


@dataclass(frozen=True)
class Record:
    """A record of `messages`."""

    key: bytes
    value: bytes
    timestamp: int
    topic: str = "messages"
    partition: int = 0
    offset: int = 0
    headers: Sequence[tuple[str, bytes]] = ()


class Conversation(NamedTuple):
    key: bytes
    row: bytes
    messages: list[tuple[bytes, bytes]]
    """Keys and rows of the other table."""


class Rewriter:
    """Makes the rows of any conversation from those of one."""

    def __init__(self, now_ms: int) -> None:
        """`now_ms`: when the messages came, milliseconds since 1970."""
        self._now_ms = now_ms
        self._id, self._name = names(0)
        conversations, messages = segmented(Record(*message(self._id, self._name, 0), now_ms), now_ms)
        (self._row,) = conversations.values()
        (self._body,) = (row for key, row in messages.items() if keys.parse_key(key).kind == "body")

    def conversation(self, number: int, deadline_ms: int) -> Conversation:
        conversation, name = names(number)
        prefix, digest = keys.prefix(keys.Scope(conversation)), keys.id_digest(name)
        body = digest + self._body[len(digest_of(self._body)) :].replace(self._name.encode(), name.encode())
        rows = [(keys.body_key(prefix, 0), body), (keys.seen_key(prefix, digest), keys.encode_seq(0))]
        row = deadline_ms.to_bytes(DEADLINE_BYTES) + self._row[DEADLINE_BYTES:]
        return Conversation(keys.record_key(conversation), row, rows)


def names(number: int) -> tuple[str, str]:
    """Ids of a conversation and its message."""
    return f"open-{number:08}", f"m-{number:08}"


def segmented(record: Record, now_ms: int) -> tuple[Rows, Rows]:
    """The rows that the segmenter makes of one message."""
    conversations: Rows = {}
    messages: Rows = {}
    segmenter = Segmenter(
        limits=Episodes(),
        episodes_topic="episodes",
        dead_letters_topic="dead-letters",
        conversations=conversations,
        messages=messages,
        count_tokens=lambda text: len(text.split()),
    )
    segmenter.process([record], now_ms)
    return conversations, messages


def deadlines(count: int, now_ms: int) -> Iterator[int]:
    """Spread evenly, milliseconds since 1970."""
    for number in range(count):
        yield now_ms + 1000 * DEADLINES_FROM_SECONDS + 1000 * DEADLINES_FOR_SECONDS * number // count


async def fill(deployed: Deployment, count: int) -> int:
    """The number of records, bookmarks included, that are in the changelogs then."""
    writers = [Writer(deployed, partition) for partition in range(deployed.partitions)]
    choose, partitions, now_ms = DefaultPartitioner(), list(range(deployed.partitions)), time.time_ns() // 1_000_000
    rewriter = Rewriter(now_ms)
    for writer in writers:
        await writer.open()
    for number, deadline in enumerate(deadlines(count, now_ms)):
        conversation = rewriter.conversation(number, deadline)
        await writers[choose(conversation.key, partitions, partitions)].write(conversation)
    for writer in writers:
        await writer.close()
    return sum(writer.records for writer in writers)


class Writer:
    """Writer of what the worker of one partition writes."""

    def __init__(self, deployed: Deployment, partition: int) -> None:
        kafka = deployed.settings.kafka
        self._source = TopicPartition(kafka.messages_topic, partition)
        self._changelogs = {
            table: TopicPartition(kafka.changelog(table), partition) for table in (CONVERSATIONS, MESSAGES)
        }
        self._group = kafka.segmenter_id
        self._lineage = new_lineage()
        clients = Clients({"bootstrap_servers": deployed.stack.bootstrap_servers})
        self._producer = TransactionalProducer(f"{self._group}-{self._source.topic}-{partition}", clients, Options())
        self._waiting: list[Conversation] = []
        self.records = 0

    async def open(self) -> None:
        await self._producer.open(OPEN_SECONDS)

    async def write(self, conversation: Conversation) -> None:
        self._waiting.append(conversation)
        if len(self._waiting) == IN_TRANSACTION:
            await self._commit()

    async def close(self) -> None:
        await self._commit()
        await self._producer.close()

    async def _commit(self) -> None:
        rows = {
            self._changelogs[CONVERSATIONS]: [(one.key, one.row) for one in self._waiting],
            self._changelogs[MESSAGES]: [row for one in self._waiting for row in one.messages],
        }
        bookmark = Bookmark(0, self._lineage, sorted(self._changelogs))  # no record of the messages was read for it
        await self._producer.commit([], rows, bookmark, self._source, self._group)
        self.records += sum(len(changes) + 1 for changes in rows.values())
        self._waiting = []
