"""Looking again, at any time after an erasure: what is still there of the person, and whether its date has passed.

Stores must have nothing. Topics keep what they had until their dates; what came after the receipt is not meant.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import orjson
from aiokafka import ConsumerRecord

from afterword.audit.log import Log, open_log
from afterword.dlq import queue_topics, resolved_offset
from afterword.erasing.eraser import PAGE, Person, holds, person_of
from afterword.erasing.receipt import Receipt, TopicDate, salted_digest
from afterword.schemas.base import rfc3339
from afterword.schemas.episodes import EPISODE_AMENDED, EPISODE_REDO
from afterword.schemas.headers import CE_TYPE, header
from afterword.streams.errors import RowUnreadable, StateUnreadable
from afterword.streams.kafka import broker_errors
from afterword.streams.segmenter.state import MESSAGES, decode_body, parse_key
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.messages import Selection
from afterword.streams.stores.opening import Stores, open_stores

IsTheirs = Callable[[ConsumerRecord], bool]
Pages = Callable[[str, str | None, str | None, int], Awaitable[list[str]]]

IDS = 1000
"""Episode ids that the index is asked for at once."""


@dataclass(frozen=True)
class Remains:
    """Remains in one place."""

    place: str
    number: int
    gone_by: datetime | None
    """None: it should be gone."""

    def is_late(self, now: datetime) -> bool:
        return self.gone_by is None or self.gone_by < now

    def line(self, now: datetime) -> str:
        until = f"should have gone by {rfc3339(self.gone_by)}" if self.gone_by else "should be gone"
        if not self.is_late(now) and self.gone_by:
            until = f"goes by {rfc3339(self.gone_by)}"
        return f"{self.place}: {self.number:,}, {until}"


@dataclass(frozen=True)
class Verification:
    """Findings, and the topics that nothing bounds."""

    findings: tuple[Remains, ...]
    unbounded: tuple[str, ...]
    """Topics whose settings keep what they have for ever, and that have something."""
    looked_at: datetime

    @property
    def late(self) -> tuple[Remains, ...]:
        return tuple(found for found in self.findings if found.is_late(self.looked_at))


async def verify(
    settings: Settings, receipt: Receipt, user_id: str, tenant_id: str | None, now: datetime | None = None
) -> Verification:
    """Look for what a receipt says is gone, in all stores and topics but that of the messages.

    Raises: NotTheirs for a receipt of somebody else; StoreUnavailable, BrokerUnavailable, TopicStalled.
    """
    receipt.check(user_id, tenant_id)
    person = person_of(user_id, tenant_id, None)
    async with AsyncExitStack() as opening:
        stores = await opening.enter_async_context(open_stores(settings))
        found = [
            Remains("messages in the archive", await _messages(stores, receipt, person, settings), None),
            Remains("episodes", await _episodes(stores, receipt, person), None),
            Remains("deleted episodes in the index", await _indexed(stores, receipt), None),
        ]
        unbounded: list[str] = []
        selector = Selector(receipt, person)
        with broker_errors(settings.kafka.bootstrap_servers):
            log = await opening.enter_async_context(open_log(settings.kafka))
            existing = await log.topics()
            for date in receipt.topics:
                is_theirs = selector.of(settings.kafka, date.topic)
                if is_theirs and date.topic in existing:
                    number = await _records(log, date, is_theirs)
                    if isinstance(date.gone_by, datetime):
                        found.append(Remains(date.topic, number, date.gone_by))
                    elif number:
                        unbounded.append(date.topic)
    there = tuple(one for one in found if one.number)
    return Verification(there, tuple(unbounded), now or datetime.now(UTC))


async def _messages(stores: Stores, receipt: Receipt, person: Person, settings: Settings) -> int:
    """Count the person's messages of before the receipt: what they wrote later is theirs to keep."""
    [date] = [topic for topic in receipt.topics if topic.topic == settings.kafka.messages_topic]
    number = 0
    async for conversation in _conversations(stores.messages.conversations_of, person):
        if _is_meant(receipt, conversation):
            selection = Selection(conversation, person.tenant_id, user_id=person.user_id)
            number += sum(
                [1 async for one in stores.messages.newest(selection) if one.offset < date.ends.get(one.partition, 0)]
            )
    return number


async def _episodes(stores: Stores, receipt: Receipt, person: Person) -> int:
    """Count the person's episodes that ended before the receipt."""
    number = 0
    async for conversation in _conversations(stores.episodes.conversations_of, person):
        if not _is_meant(receipt, conversation):
            continue
        after: str | None = None
        while page := await stores.episodes.of_conversation(conversation, after, PAGE):
            for stored in page:
                users = {*getattr(stored, "participants", ()), getattr(stored.event, "user_id", None)}
                closed_at = getattr(stored.event, "closed_at", receipt.finished_at)
                number += person.user_id in users and closed_at < receipt.finished_at
            after = page[-1].event.episode_id
    return number


async def _conversations(pages: Pages, person: Person) -> AsyncIterator[str]:
    after: str | None = None
    while page := await pages(person.user_id, person.tenant_id, after, PAGE):
        for conversation in page:
            yield conversation
        after = page[-1]


def _is_meant(receipt: Receipt, conversation_id: str) -> bool:
    """Tell whether the receipt is about a conversation; one of all conversations is about each."""
    return receipt.conversation in (None, salted_digest(receipt.salt, "conversation", conversation_id))


async def _indexed(stores: Stores, receipt: Receipt) -> int:
    """Count deleted episodes of the receipt's conversations that the index still has."""
    meant = {*receipt.deleted_conversations, *receipt.shared_conversations}
    number, ids = 0, []
    async for gone in stores.episodes.all_deleted():
        if salted_digest(receipt.salt, "conversation", gone.deletion.conversation_id) in meant:
            ids.append(gone.deletion.episode_id)
        if len(ids) == IDS:
            number += len(await stores.index_reader.has(ids))
            ids.clear()
    return number + (len(await stores.index_reader.has(ids)) if ids else 0)


async def _records(log: Log, date: TopicDate, is_theirs: IsTheirs) -> int:
    """Count records of the person that were there at the time of the receipt, and still are.

    A record of a changelog that a later one replaces waits for compaction, and counts.
    """
    records = log.records(date.topic)
    return sum([1 async for one in records if one.offset < date.ends.get(one.partition, 0) and is_theirs(one)])


class Selector(NamedTuple):
    """Tells records that hold something of the person."""

    receipt: Receipt
    person: Person

    def of(self, kafka: Kafka, topic: str) -> IsTheirs | None:
        """Select from a topic; None for one that holds ids of episodes, or counters."""
        if topic == kafka.changelog(MESSAGES):
            return self._is_body
        if topic in queue_topics(kafka):
            return self._is_dead_letter
        if topic == kafka.summaries_topic:
            return self._is_summary
        return self._is_episode if topic in (kafka.episodes_topic, kafka.retry_topic) else None

    def _is_episode(self, record: ConsumerRecord) -> bool:
        if not record.value or header(record.headers, CE_TYPE) in (EPISODE_AMENDED, EPISODE_REDO):
            return False
        return self._is_whole(record.key) or (self._is_shared(record.key) and holds(record.value, self.person))

    def _is_summary(self, record: ConsumerRecord) -> bool:
        """A summary of a conversation that others share may have words of the person: all of these count."""
        return bool(record.value) and (self._is_whole(record.key) or self._is_shared(record.key))

    def _is_dead_letter(self, record: ConsumerRecord) -> bool:
        return resolved_offset(record) is None and (self._is_episode(record) or holds(record.value, self.person))

    def _is_body(self, record: ConsumerRecord) -> bool:
        try:
            key = parse_key(record.key)
            body = decode_body(record.value) if record.value and key.kind == "body" else None
        except (RowUnreadable, StateUnreadable):
            return orjson.dumps(self.person.user_id) in (record.value or b"")
        if body is None or body.is_gone:
            return False
        of_conversation = key.scope.conversation_id.encode()
        is_meant = self._is_whole(of_conversation) or self._is_shared(of_conversation)
        return is_meant and orjson.loads(body.json).get("user_id") == self.person.user_id

    def _is_whole(self, key: bytes | None) -> bool:
        return self._digest(key) in self.receipt.deleted_conversations

    def _is_shared(self, key: bytes | None) -> bool:
        return self._digest(key) in self.receipt.shared_conversations

    def _digest(self, key: bytes | None) -> str:
        return salted_digest(self.receipt.salt, "conversation", (key or b"").decode(errors="replace"))
