"""Remains of a person in topics."""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import orjson
from aiokafka import ConsumerRecord

from afterword.audit.log import Log
from afterword.dlq import queue_topics, resolved_offset
from afterword.erasing.receipt import Receipt, TopicDate, salted_digest
from afterword.schemas.decoding import InvalidRecord, RecordHeaders, json_object, read_event
from afterword.schemas.episodes import EPISODE_AMENDED, EPISODE_REDO
from afterword.schemas.headers import CE_TYPE, header
from afterword.schemas.messages import MESSAGE_EDITED
from afterword.streams.errors import RowUnreadable, StateUnreadable
from afterword.streams.segmenter.state import MESSAGES, decode_body, parse_key
from afterword.streams.settings import Kafka
from afterword.streams.stores.arguments import require

IsTheirs = Callable[[ConsumerRecord], bool]


class Person(NamedTuple):
    """Person whose messages are erased: matched exactly, in one tenant, in one conversation or in all."""

    user_id: str
    tenant_id: str | None
    """None: messages without a tenant."""
    conversation_id: str | None = None

    @property
    def key(self) -> str:
        return hashlib.sha256(orjson.dumps([self.user_id, self.tenant_id, self.conversation_id])).hexdigest()


def person_of(user_id: str, tenant_id: str | None, conversation_id: str | None) -> Person:
    """Raises: TypeError; ValueError for an empty user, whom messages have whose producer knew none."""
    require(str, user_id=user_id)
    require(str | None, tenant_id=tenant_id, conversation_id=conversation_id)
    if not user_id:
        raise ValueError("user_id is empty: that is nobody")
    return Person(user_id, tenant_id, conversation_id)


def holds(value: bytes | None, person: Person) -> bool:
    """Tell whether a record's value is of the person: a message, an episode or a summary; or no JSON, but with the id.

    What cannot be read says nothing of its tenant; it can never be taken as it is, so that discarding it loses nothing.
    """
    try:
        found = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return orjson.dumps(person.user_id) in (value or b"")
    events = (found, found.get("data")) if isinstance(found, dict) else ()  # a structured CloudEvent has it in `data`
    return any(isinstance(event, dict) and _is_of(event, person) for event in events)


def edited_id(value: bytes | None, headers: RecordHeaders, person: Person) -> str | None:
    """Return the id of the message that a record edits in the person's tenant; empty for one that nobody can read.

    None for any other record. An edit has words of whoever wrote the message, and names no user.
    """
    try:
        data, event_type = read_event(value, headers)
        event = json_object(data)
    except InvalidRecord:  # the end is cut off, for example
        said = MESSAGE_EDITED.encode()
        return "" if (CE_TYPE, said) in headers or said in (value or b"") else None
    if event_type != MESSAGE_EDITED or event.get("tenant_id") != person.tenant_id:
        return None
    found = event.get("id")
    return found if isinstance(found, str) else ""


def _is_of(event: dict[str, Any], person: Person) -> bool:
    messages = [message for name in ("messages", "overlap") for message in _list(event.get(name))]
    users = [one.get("user_id") for one in (event, *messages) if isinstance(one, dict)]
    return event.get("tenant_id") == person.tenant_id and person.user_id in users


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


async def remaining(log: Log, date: TopicDate, is_theirs: IsTheirs) -> int:
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
        if topic == kafka.undelivered_topic:
            return self._is_undelivered
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
        if resolved_offset(record) is not None:
            return False
        is_edit = self._is_shared(record.key) and edited_id(record.value, record.headers, self.person) is not None
        return is_edit or self._is_episode(record) or holds(record.value, self.person)

    def _is_undelivered(self, record: ConsumerRecord) -> bool:
        return resolved_offset(record) is None and self._is_summary(record)

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
