"""Conversations in tests' notation, and a segmenter on the engine's tables over two dictionaries."""

import asyncio
import atexit
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import orjson

from afterword.schemas import EpisodeAmended, EpisodeClosed, decode_closed
from afterword.schemas.base import EPOCH, MILLISECOND, rfc3339
from afterword.schemas.records import owner_header
from afterword.streams.segmenter.processor import UNLIMITED, ByteBudget, Outcome, Segmenter
from afterword.streams.segmenter.rules import MAX_PENDING_MESSAGES
from afterword.streams.segmenter.state import CONVERSATIONS, MESSAGES, TABLES, deadline_of
from afterword.streams.settings import Episodes
from faust_eos.batch import Batch, _current
from faust_eos.database import IdleSince
from faust_eos.drivers import Store
from faust_eos.transaction import Output

NOON = 1_767_268_800_000
SECOND = 1000
EPISODES, DEAD_LETTERS = "episode.closed", "messages.dlq"
STORES = {name: Store("", None, None, table_name=name) for name in TABLES}
RUNNER = asyncio.Runner()
"""One loop for all batches, each of which makes a future."""
atexit.register(RUNNER.close)


@dataclass(frozen=True)
class Sent:
    """A record on `messages`, with aiokafka's names."""

    key: bytes | None
    value: bytes | None
    offset: int = 0
    timestamp: int = NOON
    topic: str = "messages"
    partition: int = 3
    headers: tuple[tuple[str, bytes], ...] = ()


def moment(ms: int) -> datetime:
    """Return a time. `ms` is in milliseconds since 1970."""
    return EPOCH + ms * MILLISECOND


def say(message_id: str, content: str = "x", *, at: int = 0, stamped: int | None = None, **fields: Any) -> Sent:
    """A message `at` so many seconds after noon; `stamped`: the record's timestamp, when it is another."""
    event = {
        "id": message_id,
        "conversation_id": "c",
        "user_id": "ann",
        "role": "user",
        "content": content,
        "sent_at": rfc3339(moment(NOON + at * SECOND)),
    } | fields
    timestamp = NOON + (at if stamped is None else stamped) * SECOND
    return Sent(event["conversation_id"].encode(), orjson.dumps(event), timestamp=timestamp)


def says(*ids: str, **fields: Any) -> list[Sent]:
    return [say(i, **fields) for i in ids]


def flush(conversation_id: str = "c", **fields: Any) -> Sent:
    event = {"type": "conversation.flush", "conversation_id": conversation_id} | fields
    return Sent(conversation_id.encode(), orjson.dumps(event))


def edit(message_id: str, *, conversation_id: str = "c", **fields: Any) -> Sent:
    event = {"type": "message.edited", "id": message_id, "conversation_id": conversation_id} | fields
    return Sent(conversation_id.encode(), orjson.dumps(event))


def delete(message_id: str, *, conversation_id: str = "c", **fields: Any) -> Sent:
    event = {"type": "message.deleted", "id": message_id, "conversation_id": conversation_id} | fields
    return Sent(conversation_id.encode(), orjson.dumps(event))


def delete_conversation(conversation_id: str = "c", **fields: Any) -> Sent:
    event = {"type": "conversation.deleted", "conversation_id": conversation_id} | fields
    return Sent(conversation_id.encode(), orjson.dumps(event))


def assign(from_user_id: str = "ann", user_id: str = "bob", conversation_id: str = "c", **fields: Any) -> Sent:
    event = {"type": "conversation.assigned", "conversation_id": conversation_id} | fields
    return Sent(conversation_id.encode(), orjson.dumps({**event, "from_user_id": from_user_id, "user_id": user_id}))


def characters(text: str) -> int:
    """Count characters as tokens, so that a test can count them."""
    return len(text)


def limits(**changed: Any) -> Episodes:
    """Return rules by which nothing closes except as the test says."""
    roomy = {"trigger": 1000, "trigger_tokens": 10**9, "max_episode_size": 1000, "max_episode_tokens": 10**9}
    return Episodes(**{**roomy, "min_episode_size": 1, "overlap": 0} | changed)


@dataclass
class Chat:
    """Feeds a segmenter batch by batch, as the engine does, and keeps its rows."""

    limits: Episodes = field(default_factory=limits)
    max_pending: int = field(default=MAX_PENDING_MESSAGES, kw_only=True)
    conversations: dict[bytes, bytes] = field(default_factory=dict)
    messages: dict[bytes, bytes] = field(default_factory=dict)
    now_ms: int = NOON
    count_tokens: Callable[[str], int] = characters
    offset: int = 0

    def hear(self, *records: Sent) -> list[EpisodeClosed]:
        return episodes(self.process(records).outgoing)

    def process(self, records: Iterable[Sent], budget: ByteBudget = UNLIMITED) -> Outcome:
        numbered = [Sent(**{**vars(record), "offset": self.offset + i}) for i, record in enumerate(records)]
        outcome = self._committed(lambda segmenter: segmenter.process(numbered, self.now_ms, budget))
        self.offset += len(numbered)
        return outcome

    def wait(self, seconds: float) -> list[EpisodeClosed]:
        """Let wall time pass, and let the engine check the deadlines."""
        self.now_ms += int(seconds * SECOND)
        return episodes(self.tick(self.due()).outgoing)

    def due(self) -> list[bytes]:
        return [key for _, _, key in due(self.conversations, self.limits.forget_after_ms, self.now_ms)]

    def tick(self, due: Sequence[bytes]) -> Outcome:
        return self._committed(lambda segmenter: segmenter.tick(due, self.now_ms, "messages", 3))

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return a row, like the database of a partition."""
        return self._rows[table].get(key)

    @property
    def _rows(self) -> dict[str, dict[bytes, bytes]]:
        return {CONVERSATIONS: self.conversations, MESSAGES: self.messages}

    def _committed(self, run: Callable[[Segmenter], Outcome]) -> Outcome:
        """The changes are in the engine's overlay, and reach the rows at the end; if it raises, never."""

        async def agent() -> tuple[Outcome, Batch]:
            batch = Batch("messages-3", self)
            _current.set(batch)
            tables = STORES[CONVERSATIONS], STORES[MESSAGES]
            segmenter = Segmenter(
                self.limits,
                EPISODES,
                DEAD_LETTERS,
                *tables,
                count_tokens=self.count_tokens,
                max_pending=self.max_pending,
            )
            return run(segmenter), batch

        outcome, batch = RUNNER.run(agent())
        for name, rows in self._rows.items():
            for key, value in STORES[name].changes(batch):
                if value is None:
                    del rows[key]
                else:
                    rows[key] = value
        return outcome


def due(conversations: Mapping[bytes, bytes], forget_after_ms: int, now_ms: int) -> list[tuple[bool, int, bytes]]:
    """Return what the engine's index finds, in order: whether a row is only idle, its deadline, and its key."""
    deadlines = [(deadline_of(row), key) for key, row in conversations.items()]
    found = [(isinstance(at, IdleSince), at, key) for at, key in deadlines if at is not None]
    return sorted(
        (idle, at, key)
        for idle, at, key in found
        if at + idle * forget_after_ms <= now_ms and (forget_after_ms or not idle)
    )


def episodes(outgoing: Iterable[Output]) -> list[EpisodeClosed]:
    return [event for event in closed_or_amended(outgoing) if isinstance(event, EpisodeClosed)]


def amendments(outgoing: Iterable[Output]) -> list[EpisodeAmended]:
    return [event for event in closed_or_amended(outgoing) if isinstance(event, EpisodeAmended)]


def closed_or_amended(outgoing: Iterable[Output]) -> list[EpisodeClosed | EpisodeAmended]:
    return [decode_closed(o.key, o.value, o.headers) for o in outgoing if o.topic == EPISODES]


def ids(episode: EpisodeClosed) -> str:
    """Return the ids of the core messages in order, which in most tests are one letter each."""
    return " ".join(m.id for m in episode.messages)


def closed(found: Iterable[EpisodeClosed]) -> list[tuple[str, str]]:
    return [(ids(episode), episode.close_reason) for episode in found]


def claimed(record: Sent, user_id: str) -> Sent:
    """Return a record that a key of this user wrote into a conversation which the stores did not have yet."""
    return replace(record, headers=(*record.headers, owner_header(None, user_id)))


def records(said: str | list[Any]) -> list[Sent]:
    match said:
        case "/":
            return [flush()]
        case str(names):
            return says(*names.split())
        case [name, fields]:
            return [say(name, **fields)]


def heard(chat: Chat, talk: list[Any]) -> list[EpisodeClosed]:
    return [
        e for said in talk for e in (chat.wait(said) if isinstance(said, (int, float)) else chat.hear(*records(said)))
    ]


def check_steps(rule: str, changed: dict[str, Any], steps: list[Any]) -> None:
    """Say what each step says, and check which episodes close."""
    chat = Chat(limits(**changed))
    for talk, found in steps:
        assert [[*episode] for episode in closed(heard(chat, talk))] == found, rule
