"""Records of Kafka and their headers: CloudEvents 1.0 in binary mode."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

import orjson

from afterword.schemas.base import rfc3339

Headers = list[tuple[str, bytes]]

CONTENT_TYPE = "content-type"
JSON = "application/json"
STRUCTURED_JSON = "application/cloudevents+json"
CE_TYPE = "ce_type"
CE_ID = "ce_id"
RESERVED_PREFIX = "__afterword."
"""Prefix of headers that only Afterword writes; a producer's are dropped when a record is copied."""
FOR_ENDPOINT = "afterword_webhook"
"""Header of an event that is replayed for one endpoint of webhooks, by its name: nobody else takes it."""
OWNER = "afterword_owner"
"""Header of an event that we produce: JSON array of its tenant and user, so that readers can pass over what is foreign
without decoding it."""
REPLACED = RESERVED_PREFIX + "replaced"
"""Header of a record that replaces one that a consumer could not hand on; JSON, see `replacements.py`."""


class KafkaRecord(Protocol):
    """The part of aiokafka's `ConsumerRecord` that pure code reads."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


def cloud_event(event_type: str, event_id: str, source: str, time: datetime) -> Headers:
    """Binary-mode headers for a record that we produce."""
    return [
        ("ce_specversion", b"1.0"),
        (CE_ID, event_id.encode()),
        (CE_TYPE, event_type.encode()),
        ("ce_source", source.encode()),
        ("ce_time", rfc3339(time).encode()),
        (CONTENT_TYPE, JSON.encode()),
    ]


class EventOwner(NamedTuple):
    """Whose an event is."""

    tenant_id: str | None
    user_id: str | None
    """None: the event names no user."""


def owner_header(tenant_id: str | None, user_id: str | None) -> tuple[str, bytes]:
    """Build the header that names the owner of an event."""
    return OWNER, orjson.dumps([tenant_id, user_id])


def owner_in(headers: Iterable[tuple[str, bytes | None]]) -> EventOwner | None:
    """Read the owner of an event; None if its record does not name one."""
    found = header(headers, OWNER)
    try:
        tenant_id, user_id = orjson.loads(found or "")
    except (orjson.JSONDecodeError, TypeError, ValueError):
        return None
    return EventOwner(tenant_id, user_id)


def header(headers: Iterable[tuple[str, bytes | None]] | None, name: str) -> str | None:
    """The first header of that name as text; None when absent. Bytes that are not UTF-8 are replaced."""
    for key, value in headers or ():
        if key == name:
            return (value or b"").decode(errors="replace")
    return None
