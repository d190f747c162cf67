"""CloudEvents 1.0 over Kafka, and the headers of dead letters."""

from collections.abc import Iterable
from datetime import datetime

from afterword.schemas.base import rfc3339

Headers = list[tuple[str, bytes]]

CONTENT_TYPE = "content-type"
JSON = "application/json"
STRUCTURED_JSON = "application/cloudevents+json"
CE_TYPE = "ce_type"
CE_ID = "ce_id"

DEAD_LETTER_PREFIX = "__afterword.errors."


def cloud_event(event_type: str, event_id: str, source: str, time: datetime) -> Headers:
    """Binary-mode headers for a record that we produce."""
    named = {
        "ce_specversion": "1.0",
        CE_ID: event_id,
        CE_TYPE: event_type,
        "ce_source": source,
        "ce_time": rfc3339(time),
        CONTENT_TYPE: JSON,
    }
    return [(name, value.encode()) for name, value in named.items()]


def header(headers: Iterable[tuple[str, bytes | None]] | None, name: str) -> str | None:
    """The first header of that name as text; None when absent. Bytes that are not UTF-8 are replaced."""
    for key, value in headers or ():
        if key == name:
            return (value or b"").decode(errors="replace")
    return None
