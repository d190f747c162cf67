"""Records of Kafka and their headers: CloudEvents 1.0 in binary mode."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol

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


def header(headers: Iterable[tuple[str, bytes | None]] | None, name: str) -> str | None:
    """The first header of that name as text; None when absent. Bytes that are not UTF-8 are replaced."""
    for key, value in headers or ():
        if key == name:
            return (value or b"").decode(errors="replace")
    return None
