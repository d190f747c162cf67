"""Dead letters: a record that was rejected, unchanged, with headers that say where it came from and what was wrong."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from afterword.schemas.base import rfc3339
from afterword.schemas.headers import Headers, KafkaRecord, header

DEAD_LETTER_PREFIX = "__afterword.errors."
MAX_MESSAGE_CHARACTERS = 500
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNKNOWN = "unknown"
"""Stage and error type of a record on a dead-letter queue that Afterword did not write."""


class Origin(NamedTuple):
    """Position of the rejected record."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True)
class DeadLetter:
    """A dead letter as it was read from its queue: position there, failure, and the original record."""

    topic: str
    partition: int
    offset: int
    failed_at: datetime
    stage: str
    error_type: str
    problem: str
    origin: Origin | None
    """None for a record that Afterword did not write: there is no telling where it belongs."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    """The original's headers, without those that the dead letter added."""

    @property
    def address(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def conversation_id(self) -> str | None:
        return None if self.key is None else self.key.decode(errors="replace")


def dead_letter(
    record: KafkaRecord, *, stage: str, error_type: str, message: str, attempts: int = 1, now_ms: int
) -> tuple[bytes | None, bytes | None, Headers]:
    """Return key, value and headers of the dead letter for `record`.

    `error_type` is a stable snake_case word. `message` is for people and is cut to one line of
    `MAX_MESSAGE_CHARACTERS`. `attempts` counts how often the record was tried. `now_ms`: milliseconds since 1970.
    A replayed dead letter that fails again carries only the latest failure.
    """
    failure = {
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "stage": stage,
        "type": error_type,
        "message": one_line(message),
        "timestamp": rfc3339(EPOCH + timedelta(milliseconds=now_ms)),
        "attempts": str(attempts),
    }
    added = [(DEAD_LETTER_PREFIX + name, value.encode()) for name, value in failure.items()]
    return record.key, record.value, _original_headers(record) + added


def read_dead_letter(record: KafkaRecord) -> DeadLetter:
    """Read any record of a dead-letter queue; what it does not say is unknown."""

    def said(name: str) -> str | None:
        return header(record.headers, DEAD_LETTER_PREFIX + name)

    return DeadLetter(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        failed_at=_moment(said("timestamp"), record.timestamp),
        stage=said("stage") or UNKNOWN,
        error_type=said("type") or UNKNOWN,
        problem=said("message") or "",
        origin=_origin(said("topic"), said("partition"), said("offset")),
        key=record.key,
        value=record.value,
        headers=_original_headers(record),
    )


def one_line(text: str) -> str:
    """Bound the text and drop control characters: a record's content must not forge a line of a log."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    line = " ".join(printable.split())
    return line if len(line) <= MAX_MESSAGE_CHARACTERS else line[: MAX_MESSAGE_CHARACTERS - 1] + "…"


def _original_headers(record: KafkaRecord) -> Headers:
    return [(name, value) for name, value in record.headers if not name.startswith(DEAD_LETTER_PREFIX)]


def _moment(said: str | None, timestamp_ms: int) -> datetime:
    try:
        return datetime.fromisoformat(said or "").astimezone(UTC)
    except (ValueError, OverflowError):
        return datetime.fromtimestamp(max(timestamp_ms, 0) / 1000, UTC)


def _origin(topic: str | None, partition: str | None, offset: str | None) -> Origin | None:
    if not (topic and partition and offset and partition.isdecimal() and offset.isdecimal()):
        return None
    return Origin(topic, int(partition), int(offset))
