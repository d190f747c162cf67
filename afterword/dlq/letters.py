"""What is in a topic of dead letters: letters, and what became of them. No I/O.

Letters are never deleted. What became of one is a record of its own behind it, in the same partition, whose
headers name the letter's offset: so it can be written in one transaction with the record that is sent again, and
expires after the letter.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, NamedTuple, Protocol

from afterword.schemas.base import rfc3339
from afterword.schemas.headers import DEAD_LETTER_PREFIX, Headers, header
from afterword.streams.runtime import dead_letters

RESOLUTION_PREFIX = "__afterword.dlq."
UNKNOWN = "unknown"
"""Stage and type of a record that somebody else put on the topic."""
BITS = 4096

Action = Literal["replayed", "discarded"]


class Record(dead_letters.Record, Protocol):
    """The part of aiokafka's `ConsumerRecord` that is used."""

    @property
    def timestamp(self) -> int: ...


class Origin(NamedTuple):
    """Where the record was that could not be taken."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True)
class Letter:
    """A dead letter, where it is, and why it is there."""

    topic: str
    partition: int
    offset: int
    failed_at: datetime
    stage: str
    error_type: str
    problem: str
    origin: Origin | None
    """None of a record that is not ours: nobody can say where it belongs."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    """The original's, without those that the dead letter added."""

    @property
    def address(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def conversation_id(self) -> str | None:
        return None if self.key is None else self.key.decode(errors="replace")


@dataclass(frozen=True)
class Filters:
    """All that are given must fit. Times are those of the failure, `since` included, `until` not."""

    stage: str | None = None
    error_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    conversation_id: str | None = None

    def fit(self, letter: Letter) -> bool:
        return (
            self.stage in (None, letter.stage)
            and self.error_type in (None, letter.error_type)
            and self.conversation_id in (None, letter.conversation_id)
            and (self.since is None or letter.failed_at >= self.since)
            and (self.until is None or letter.failed_at < self.until)
        )


@dataclass
class Handled:
    """Which letters of a topic were replayed or discarded: a bit for each, whatever the topic's size."""

    _bits: defaultdict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))

    def add(self, partition: int, offset: int) -> None:
        self._bits[partition, offset // BITS] |= 1 << offset % BITS

    def __contains__(self, letter: Letter) -> bool:
        return bool(self._bits.get((letter.partition, letter.offset // BITS), 0) >> letter.offset % BITS & 1)


def resolved_offset(record: Record) -> int | None:
    """The offset of the letter that the record resolves; None of a record that is no resolution."""
    found = header(record.headers, RESOLUTION_PREFIX + "offset")
    return int(found) if found is not None and found.isdecimal() else None


def resolution(letter: Letter, action: Action, now: datetime) -> Headers:
    """Headers of the record that says what became of the letter."""
    named = {"offset": str(letter.offset), "action": action, "timestamp": rfc3339(now)}
    return [(RESOLUTION_PREFIX + name, value.encode()) for name, value in named.items()]


def letter(record: Record) -> Letter:
    def said(name: str) -> str | None:
        return header(record.headers, DEAD_LETTER_PREFIX + name)

    return Letter(
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
        headers=[(name, value) for name, value in record.headers if not name.startswith(DEAD_LETTER_PREFIX)],
    )


def _moment(said: str | None, timestamp_ms: int) -> datetime:
    try:
        return datetime.fromisoformat(said or "").astimezone(UTC)
    except (ValueError, OverflowError):
        return datetime.fromtimestamp(max(timestamp_ms, 0) / 1000, UTC)


def _origin(topic: str | None, partition: str | None, offset: str | None) -> Origin | None:
    if not (topic and partition and offset and partition.isdecimal() and offset.isdecimal()):
        return None
    return Origin(topic, int(partition), int(offset))
