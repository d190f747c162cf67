"""What is in a topic of dead letters: letters, and what became of them. No I/O.

Letters are never deleted. What became of one is a record of its own behind it, in the same partition, whose
headers name the letter's offset: so it can be written in one transaction with the record that is sent again, and
expires after the letter.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from afterword.schemas.base import rfc3339
from afterword.schemas.dead_letters import DeadLetter
from afterword.schemas.headers import Headers, KafkaRecord, header

RESOLUTION_PREFIX = "__afterword.dlq."
BITS = 4096

Action = Literal["replayed", "discarded"]


@dataclass(frozen=True)
class Filters:
    """All that are given must fit. Times are those of the failure, `since` included, `until` not."""

    stage: str | None = None
    error_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    conversation_id: str | None = None

    def fit(self, letter: DeadLetter) -> bool:
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

    def __contains__(self, letter: DeadLetter) -> bool:
        return bool(self._bits.get((letter.partition, letter.offset // BITS), 0) >> letter.offset % BITS & 1)


def resolved_offset(record: KafkaRecord) -> int | None:
    """The offset of the letter that the record resolves; None of a record that is no resolution."""
    found = header(record.headers, RESOLUTION_PREFIX + "offset")
    return int(found) if found is not None and found.isdecimal() else None


def resolution(letter: DeadLetter, action: Action, now: datetime) -> Headers:
    """Headers of the record that says what became of the letter."""
    named = {"offset": str(letter.offset), "action": action, "timestamp": rfc3339(now)}
    return [(RESOLUTION_PREFIX + name, value.encode()) for name, value in named.items()]
