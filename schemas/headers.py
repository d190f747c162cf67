"""Kafka records as we write them, and their headers: CloudEvents 1.0 in binary mode."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol, Self

import orjson

from afterword.schemas.base import rfc3339
from afterword.schemas.ids import escape, message_key
from afterword.schemas.messages import (
    INPUT_TYPES,
    MESSAGE_CREATED,
    ConversationAssigned,
    ConversationDeleted,
    ConversationFlush,
    InputEvent,
    MessageCreated,
)

Headers = list[tuple[str, bytes]]

CONTENT_TYPE = "content-type"
JSON = "application/json"
STRUCTURED_JSON = "application/cloudevents+json"
CE_TYPE = "ce_type"
CE_ID = "ce_id"
RESERVED_PREFIX = "__afterword."
"""Prefix of headers that only Afterword writes. A producer's headers with this prefix are dropped when a record is
copied."""
FOR_ENDPOINT = "afterword_webhook"
"""Header that names the webhook endpoint an event is replayed for. Every other reader skips the event."""
OWNER = "afterword_owner"
"""Header of every event that we produce: a JSON array of its tenant and user. Readers can use it to skip other people's
events without decoding them."""
DELETION = "afterword_deletion"
"""Header of an episode's tombstone on the compacted topic, which holds the `summary.deleted` that ended the episode."""
REPLACED = RESERVED_PREFIX + "replaced"
"""Name of a `Replacement`."""


class KafkaRecord(Protocol):
    """The part of aiokafka's `ConsumerRecord` that pure code uses."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Replacement(tuple[str, bytes]):
    """Marks a placeholder for a record that the consumer could not deliver.

    Readers recognize it by its class, because a producer may send a header with the same name.
    """

    error_type: str
    detail: str
    """What was wrong with the original, without anything that it contains."""

    def __new__(cls, error_type: str, detail: str) -> Self:
        made = super().__new__(cls, (REPLACED, detail.encode()))
        made.error_type, made.detail = error_type, detail
        return made


def replacement_in(headers: Sequence[tuple[str, bytes | None]]) -> Replacement | None:
    """Return the header that says what a record stands in for; None for an ordinary record."""
    first = headers[0] if headers else None
    return first if isinstance(first, Replacement) else None


def cloud_event(event_type: str, event_id: str, source: str, time: datetime) -> Headers:
    """Build the binary-mode headers of a record that we produce."""
    return [
        ("ce_specversion", b"1.0"),
        (CE_ID, event_id.encode()),
        (CE_TYPE, event_type.encode()),
        ("ce_source", source.encode()),
        ("ce_time", rfc3339(time).encode()),
        (CONTENT_TYPE, JSON.encode()),
    ]


class EventOwner(NamedTuple):
    """The tenant and user an event belongs to."""

    tenant_id: str | None
    user_id: str | None
    """None if the event names no user."""


def owner_header(tenant_id: str | None, user_id: str | None) -> tuple[str, bytes]:
    """Build the header that names an event's owner."""
    return OWNER, orjson.dumps([tenant_id, user_id])


def owner_in(headers: Iterable[tuple[str, bytes | None]]) -> EventOwner | None:
    """Read an event's owner from its headers; None if they do not name one."""
    owner = header(headers, OWNER)
    try:
        tenant_id, user_id = orjson.loads(owner or "null")
    except (orjson.JSONDecodeError, TypeError, ValueError):
        return None
    return EventOwner(tenant_id, user_id)


def header(headers: Iterable[tuple[str, bytes | None]] | None, name: str) -> str | None:
    """Return the first header with that name as text, or None. Bytes that are not UTF-8 are replaced."""
    for key, value in headers or ():
        if key == name:
            return (value or b"").decode(errors="replace")
    return None


SOURCE = "afterword/producer"
"""The CloudEvents source of records whose producer names no other."""

TYPES = {model: name for name, model in INPUT_TYPES.items()}


class ProducerRecord(NamedTuple):
    """One record for `messages`. Its key is the conversation's id in UTF-8."""

    event_type: str
    conversation_id: str
    tenant_id: str | None
    value: bytes
    headers: Headers


def to_record(event: InputEvent, now: datetime, source: str = SOURCE, value: bytes | None = None) -> ProducerRecord:
    """Build the record of an event. `value` is its JSON, if the caller has it already."""
    event_type, time = TYPES[type(event)], now
    event_id = escape(event.conversation_id)
    if not isinstance(event, ConversationFlush | ConversationDeleted | ConversationAssigned):
        event_id = message_key(event.conversation_id, event.id)
    if isinstance(event, MessageCreated):
        time = event.sent_at or now
    else:  # a message may be changed several times
        event_id = f"{event_id}:{event_type.rpartition('.')[2]}:{int(now.timestamp() * 1000)}"
    if value is None:  # an edit may set a field to its default; a message need not repeat it
        is_message = event_type == MESSAGE_CREATED
        value = event.to_json(exclude_defaults=is_message, exclude_unset=not is_message)
    headers = cloud_event(event_type, event_id, source, time)
    return ProducerRecord(event_type, event.conversation_id, event.tenant_id, value, headers)
