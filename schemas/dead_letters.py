"""Dead letters: rejected records, with headers that say where each came from and what was wrong.

The record is unchanged unless it is so large that the dead-letter topic might reject it. In that case only its
beginning is kept, with the size and the SHA-256 of the whole, so a dead letter can always be written. If redaction
applies to all records, the worker redacts the dead letter afterwards (`streams.redactor`).
"""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

from afterword.schemas.base import moment_at, rfc3339
from afterword.schemas.records import RESERVED_PREFIX, Headers, KafkaRecord, header, replacement_in

DEAD_LETTER_PREFIX = RESERVED_PREFIX + "errors."
MAX_MESSAGE_CHARACTERS = 500
MAX_KEY_BYTES = 10_000
MAX_ID_CHARACTERS = 256
MAX_HEADERS_BYTES = 50_000
MAX_BYTES = 900_000
"""Upper limit for key, value and headers together, which stays below a broker's default limit of 1 MiB."""
KEPT_BYTES = 64 * 2**10
"""How many bytes of an oversized value are kept."""
MOST_USERS = 100
"""A dead letter whose value was cut names at most this many of its users."""
USER = re.compile(rb'"user_id"\s*+:\s*+("[^"\\]*+(?:\\.[^"\\]*+)*+")', re.DOTALL)
MAX_OFFSET_DIGITS = 19
LATEST_SECONDS = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
"""The latest time a datetime can hold; a record's timestamp may be later."""
ARCHIVE = "archive"
"""Stage of a record of `messages` that only the archiver failed on; the segmenter handles it independently."""
INGEST = "ingest"
"""Stage of a record of another application's topic, whose key is the application's own."""
WEBHOOKS = "webhooks"
"""Stage of an event that a webhook endpoint did not accept."""
UNFORESEEN = "unforeseen"
"""Error type of a record that repeatedly failed with an unexpected exception."""
UNKNOWN = "unknown"
"""Stage and error type of a record on a dead-letter queue that Afterword did not write."""


DeadLetterRecord = tuple[bytes | None, bytes | None, Headers]
"""Key, value and headers of a dead letter to be written."""


class Origin(NamedTuple):
    """The topic, partition and offset of the rejected record."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True)
class DeadLetter:
    """A dead letter as read from its queue: its position there, the failure, and the original record."""

    topic: str
    partition: int
    offset: int
    failed_at: datetime
    stage: str
    error_type: str
    problem: str
    origin: Origin | None
    """None for a record that Afterword did not write, because its origin is unknown."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    """The original's headers, without those that the dead letter added."""
    truncated: bool = False
    """Part of the original is missing, so it cannot be replayed from here."""
    users: tuple[str, ...] = ()
    """Users named anywhere in a value that was cut, including the part that is missing."""
    timestamp: int = 0
    """When the dead letter was written, in milliseconds since 1970."""

    @property
    def address(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def conversation_id(self) -> str | None:
        """The record's key; None for a record that ingest rejected, whose key may be anything."""
        return None if self.key is None or self.stage == INGEST else self.key.decode(errors="replace")


def dead_letter(
    record: KafkaRecord, *, stage: str, error_type: str, message: str, attempts: int = 1, now_ms: int
) -> DeadLetterRecord:
    """Return key, value and headers of the dead letter for `record`.

    `error_type` is a stable snake_case word. `message` is for people and is cut to one line of
    `MAX_MESSAGE_CHARACTERS`. `attempts` counts how often the record was tried. `now_ms` is in milliseconds since 1970.
    A replayed dead letter that fails again carries only the latest failure.
    """
    key, value, headers, cut = _bounded(record)
    failure = {
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "stage": stage,
        "type": error_type,
        "message": one_line(message),
        "timestamp": rfc3339(moment_at(now_ms)),
        "attempts": str(attempts),
        **cut,
    }
    return key, value, headers + [(DEAD_LETTER_PREFIX + name, said.encode()) for name, said in failure.items()]


def _bounded(record: KafkaRecord) -> tuple[bytes | None, bytes | None, Headers, dict[str, str]]:
    """Return key, value and headers cut to the limits, and headers that describe what was cut."""
    key, value, headers = record.key, record.value, _original_headers(record)
    cut: dict[str, str] = {}
    if replacement_in(record.headers):
        cut["truncated"] = "record"
    if key is not None and len(key) > MAX_KEY_BYTES:
        cut |= cut_headers("key", key)
        key = None
    headers_bytes = sum(len(name) + len(said or b"") for name, said in headers)
    if headers_bytes > MAX_HEADERS_BYTES:
        cut |= {"truncated": "headers", "headers_bytes": str(headers_bytes)}
        headers, headers_bytes = [], 0
    if value is not None and len(value) + len(key or b"") + headers_bytes > MAX_BYTES:
        cut |= cut_headers("value", value) | {"users": json.dumps(list(islice(users_in(value), MOST_USERS)))}
        value = value[:KEPT_BYTES]
    return key, value, headers, cut


def users_in(value: bytes) -> Iterator[str]:
    """Yield each user that a value names, once. An erasure must find those in the part that was cut off too."""
    for quoted in dict.fromkeys(match[1] for match in USER.finditer(value)):
        with suppress(ValueError):
            user = json.loads(quoted)
            if 0 < len(user) <= MAX_ID_CHARACTERS:
                yield user


def cut_headers(part: str, data: bytes) -> dict[str, str]:
    """Return headers with the size and SHA-256 of a part that the dead letter lacks or holds only in part."""
    digest = hashlib.sha256(data).hexdigest()
    return {"truncated": part, f"{part}_bytes": str(len(data)), f"{part}_sha256": digest}


def read_dead_letter(record: KafkaRecord) -> DeadLetter:
    """Parse any record of a dead-letter queue. Whatever its headers do not say is unknown."""

    def said(name: str) -> str | None:
        return header(record.headers, DEAD_LETTER_PREFIX + name)

    topic, partition, offset, origin = said("topic"), said("partition"), said("offset"), None
    if topic and is_offset(partition) and is_offset(offset):
        origin = Origin(topic, int(partition or ""), int(offset or ""))
    return DeadLetter(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        failed_at=_moment(said("timestamp"), record.timestamp),
        stage=said("stage") or UNKNOWN,
        error_type=said("type") or UNKNOWN,
        problem=said("message") or "",
        origin=origin,
        key=record.key,
        value=record.value,
        headers=_original_headers(record),
        truncated=said("truncated") is not None,
        users=_users(said("users")),
        timestamp=record.timestamp,
    )


def _users(said: str | None) -> tuple[str, ...]:
    try:
        users = json.loads(said or "[]")
    except (ValueError, RecursionError):
        return ()
    return tuple(user for user in users if isinstance(user, str)) if isinstance(users, list) else ()


def one_line(text: str) -> str:
    """Shorten the text and drop control characters, so that a record's content cannot forge a log line."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    line = " ".join(printable.split())
    return line if len(line) <= MAX_MESSAGE_CHARACTERS else line[: MAX_MESSAGE_CHARACTERS - 1] + "…"


def _original_headers(record: KafkaRecord) -> Headers:
    return [(name, value) for name, value in record.headers if not name.startswith(RESERVED_PREFIX)]


def _moment(said: str | None, timestamp_ms: int) -> datetime:
    try:
        return datetime.fromisoformat(said or "").astimezone(UTC)
    except (ValueError, OverflowError):
        return datetime.fromtimestamp(min(max(timestamp_ms, 0) / 1000, LATEST_SECONDS), UTC)


def is_offset(said: str | None) -> bool:
    """Return whether a header's text is a number that can be an offset."""
    return said is not None and said.isascii() and said.isdecimal() and len(said) <= MAX_OFFSET_DIGITS
