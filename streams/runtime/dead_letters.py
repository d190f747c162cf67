"""What becomes of a record that cannot be taken: the original, untouched, with headers that say why."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

from afterword.schemas.base import rfc3339
from afterword.schemas.headers import DEAD_LETTER_PREFIX, Headers

MAX_MESSAGE_CHARACTERS = 500
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Record(Protocol):
    """The part of aiokafka's `ConsumerRecord` that a dead letter is made of."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


def dead_letter(
    record: Record, *, stage: str, error_type: str, message: str, attempts: int = 1, now_ms: int
) -> tuple[bytes | None, bytes | None, Headers]:
    """Key, value and headers of the dead letter of `record`.

    `now_ms`: milliseconds since 1970. `attempts`: how often the record was tried. `error_type` is stable snake_case;
    `message` is for people and is cut to one line of `MAX_MESSAGE_CHARACTERS`. A record that already was a dead letter
    and was replayed carries only the errors of this time.
    """
    errors = {
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "stage": stage,
        "type": error_type,
        "message": one_line(message),
        "timestamp": rfc3339(EPOCH + timedelta(milliseconds=now_ms)),
        "attempts": str(attempts),
    }
    original = [(name, value) for name, value in record.headers if not name.startswith(DEAD_LETTER_PREFIX)]
    return record.key, record.value, original + [(DEAD_LETTER_PREFIX + n, v.encode()) for n, v in errors.items()]


def one_line(text: str) -> str:
    """Bounded text without control characters: a record's content must not be able to forge a line of a log."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    line = " ".join(printable.split())
    return line if len(line) <= MAX_MESSAGE_CHARACTERS else line[: MAX_MESSAGE_CHARACTERS - 1] + "…"
