"""A load that is known in full: the same seed gives the same conversations, each in the same order."""

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiokafka import AIOKafkaProducer

from afterword.streams.settings import Settings
from tests.dialogues import expand
from tests.e2e.faults.changes import AFTER_THE_END, Changes, guest, mark, statement

DIALOGUES = Path(__file__).parents[2] / "data" / "dialogues.jsonl"
AT_A_TIME = 12
"""Number of concurrent conversations."""
LENGTHS = (3, 30)
REPEATED, SKIPPED, SHIFTED = 0.05, 0.03, 0.1
"""Shares of messages that are produced twice, that are not to be summarized, and that begin another topic."""
FIRST_SENT_AT = 1_760_000_000
TEXT = """
order invoice refund booking flight hotel Monday Tuesday tomorrow please thanks seat window address delivery late
changed cancelled confirmed number 4711 2026 Zürich Kyiv 東京 مرحبا naïve – ok password account card charged twice
"""
REQUEST_MILLISECONDS = 300_000
"""The producer waits for an unavailable broker; with a shorter time it would drop records."""
LAST_SECONDS = 240.0


@dataclass(frozen=True)
class Sent:
    """One record that was sent to `messages`."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes]] = field(default_factory=list)


class Conversations:
    """An endless series of records. `close` returns the rest of the open conversations, each ending with a flush.

    With `changes`, messages are edited and deleted, and conversations are deleted, even after their flush.
    """

    def __init__(self, chance: random.Random, changes: bool = False) -> None:
        self._chance = chance
        self._changes = changes
        self._open: dict[str, Iterator[bytes]] = {}
        self._number = 0

    def next(self) -> tuple[str, bytes]:
        """Return the conversation and value of the next record."""
        while True:
            while len(self._open) < AT_A_TIME:
                name = f"c{self._number}"
                self._open[name] = self._conversation(name)
                self._number += 1
            name = self._chance.choice(list(self._open))
            value = next(self._open[name], None)
            if value is not None:
                return name, value
            del self._open[name]

    def close(self) -> Iterator[tuple[str, bytes]]:
        for name, values in self._open.items():
            yield from ((name, value) for value in values)
        self._open = {}

    def _conversation(self, name: str) -> Iterator[bytes]:
        chance, sent = self._chance, []
        changes = Changes(name, chance)
        for number in range(chance.randint(*LENGTHS)):
            message = self._message(name, number)
            sent.append(orjson.dumps(message))
            changes.said(message)
            yield sent[-1]
            if chance.random() < REPEATED:
                yield chance.choice(sent)
            if self._changes and (change := changes.next()):
                yield orjson.dumps({"conversation_id": name, **change})
                if change.get("type") == "conversation.deleted":
                    sent.clear()  # a deleted message would come back as another one
        yield orjson.dumps({"type": "conversation.flush", "conversation_id": name})
        if self._changes:
            for _ in range(chance.randint(0, AFTER_THE_END)):
                yield orjson.dumps({"conversation_id": name, **changes.any()})

    def _message(self, name: str, number: int) -> dict[str, Any]:
        chance = self._chance
        said = mark(name, f"m{number}", 0)
        words = chance.choices(TEXT.split(), k=chance.randint(3, 40))
        message = {
            "id": f"m{number}",
            "conversation_id": name,
            "user_id": guest(name),
            "role": "user" if number % 2 == 0 else "assistant",
            "content": " ".join([*statement(chance, said), *words, said]),
            "sent_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(FIRST_SENT_AT + 20 * number)),
        }
        if chance.random() < SHIFTED:
            message["is_continuation"] = False
        if chance.random() < SKIPPED:
            message["skip_summarization"] = True
        return message


class Dialogues(Conversations):
    """Real dialogues, repeated as different conversations."""

    def _conversation(self, name: str) -> Iterator[bytes]:
        dialogue = orjson.loads(self._chance.choice(DIALOGUES.read_bytes().splitlines()))["dialogue"]
        yield from (message.to_json() for message in expand(name, dialogue))
        yield orjson.dumps({"type": "conversation.flush", "conversation_id": name})


class Load:
    """Sends while it runs, with one idempotent producer, and remembers what it sent in order."""

    def __init__(self, settings: Settings, conversations: Conversations, per_second: float) -> None:
        self.sent: list[Sent] = []
        self.failure: BaseException | None = None
        self._topic = settings.kafka.messages_topic
        self._conversations = conversations
        self.per_second = per_second
        self._producer = AIOKafkaProducer(
            bootstrap_servers=settings.kafka.bootstrap_servers,
            enable_idempotence=True,
            linger_ms=5,
            request_timeout_ms=REQUEST_MILLISECONDS,
            max_request_size=2 * 1024 * 1024,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Send until `stop`, then end every conversation and wait for all acknowledgements."""
        await self._producer.start()
        try:
            while not stop.is_set():
                await self.put(*self._conversations.next())
                await asyncio.sleep(1 / self.per_second)
            for name, value in self._conversations.close():
                await self.put(name, value)
            async with asyncio.timeout(LAST_SECONDS):
                await self._producer.flush()
        finally:
            await self._producer.stop()
        if self.failure is not None:
            raise self.failure

    async def put(self, conversation: str, value: bytes) -> None:
        await self.send(Sent(conversation.encode(), value, int(time.time() * 1000)))

    async def send(self, record: Sent) -> None:
        """Send a record. It is noted first, so that the notes have the records of a key in the order of the log."""
        self.sent.append(record)
        delivery = await self._producer.send(
            self._topic, record.value, record.key, timestamp_ms=record.timestamp_ms, headers=record.headers
        )
        delivery.add_done_callback(self._delivered)

    def _delivered(self, delivery: "asyncio.Future[Any]") -> None:
        if not delivery.cancelled():
            self.failure = self.failure or delivery.exception()
