"""The receipt of an erasure: what was deleted, and when each topic will have lost it too."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from afterword.operating.erasing.person import Person
from afterword.operating.topics import UNBOUNDED
from afterword.schemas.base import Time, rfc3339
from afterword.streams.errors import AfterwordError, ConfigurationError
from afterword.streams.private import write_private
from afterword.streams.text.visible import many

Never = Literal["never"]
NEVER: Never = "never"
BROKER_SLACK = timedelta(minutes=15)
"""Kafka looks for expired segments every 5 minutes (log.retention.check.interval.ms), compacts when a thread is free,
and deletes a file after `file.delete.delay.ms`, a minute."""


class ReceiptUnreadable(AfterwordError):
    """{path} is not a receipt: {problem}"""


class ReceiptNotWritten(AfterwordError):
    """the receipt cannot be written to {path}: {problem}"""


class NotTheirs(ConfigurationError):
    """{setting}: the receipt is not for this user in this tenant"""


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TopicDate(Frozen):
    """The date by which a topic has lost the person's data that it held at the time of the receipt."""

    topic: str
    gone_by: Time | Never
    """`never` if the topic's settings do not limit it."""
    ends: dict[int, int]
    """The end of each partition at the time of the receipt. Later records do not count."""
    ours: bool = True
    """False for the messages topic, which is only reported."""


class Receipt(Frozen):
    """A proof of what was erased. It does not name the user."""

    receipt_id: str
    asked_by: str | None
    asked_at: Time
    finished_at: Time
    person: str
    """SHA-256 of `["RECEIPT_ID","USER","TENANT"]`, with which user and tenant can be checked."""
    conversation_id: str | None
    """The conversation that the erasure was limited to; null for all."""
    deleted_conversations: tuple[str, ...]
    """Conversations in which nobody else had written."""
    shared_conversations: tuple[str, ...]
    """Conversations in which other people's messages remain."""
    counts: dict[str, int]
    """Number of messages, conversations, episodes that the person took part in, and dead letters."""
    topics: tuple[TopicDate, ...]

    def line(self) -> str:
        """Format the receipt as one line for people."""
        dates = [topic.gone_by for topic in self.topics if topic.ours]
        last = max((rfc3339(date) for date in dates if isinstance(date, datetime)), default="–")
        named = {name.replace("_", " "): number for name, number in self.counts.items()}
        counts = ", ".join(many(number, name.removesuffix("s"), name) for name, number in named.items())
        return (
            f"receipt {self.receipt_id}: {counts}; gone from all stores at {rfc3339(self.finished_at)}, "
            f"from our topics by {NEVER if NEVER in dates else last}"
        )

    def is_of(self, person: Person) -> bool:
        """Return whether the receipt is for this user in this tenant."""
        return person.digest(self.receipt_id) == self.person

    @property
    def conversations(self) -> frozenset[str]:
        return frozenset((*self.deleted_conversations, *self.shared_conversations))

    @property
    def unbounded(self) -> list[str]:
        """Our own topics that keep their records forever."""
        return [topic.topic for topic in self.topics if topic.ours and topic.gone_by == NEVER]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a receipt from a file. Raises: ReceiptUnreadable."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ReceiptUnreadable(path=path, problem=error.strerror or type(error).__name__) from None
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise ReceiptUnreadable(path=path, problem=problem) from None

    def write(self, path: Path) -> None:
        """Write a new private file atomically. Raises: ReceiptNotWritten, also if the file exists."""
        if path.exists():
            raise ReceiptNotWritten(path=path, problem="the file already exists")
        try:
            write_private(path, self.model_dump_json(indent=2).encode() + b"\n")
        except OSError as error:
            raise ReceiptNotWritten(path=path, problem=error.strerror or type(error).__name__) from None


def gone_by(configs: Mapping[str, str], now: datetime) -> datetime | Never:
    """Return when a topic with this configuration will no longer hold records that are deleted or replaced now.

    With `delete`, a segment is removed when its youngest record is `retention.ms` old, and that record is up to
    `segment.ms` younger than others in the segment. With `compact`, a segment is closed after `segment.ms` or
    `max.compaction.lag.ms`, whichever is less, and compacted `max.compaction.lag.ms` later. Brokers check the active
    segment's age only when they append to it, so it stays as long as there is no traffic.
    """
    segment = _milliseconds(configs, "segment.ms")
    if "delete" in configs.get("cleanup.policy", "delete"):
        bounds = [_milliseconds(configs, "retention.ms"), segment]
    else:
        lag = _milliseconds(configs, "max.compaction.lag.ms")
        bounds = [lag, min(lag, segment)]
    try:
        kept = timedelta(milliseconds=sum(bounds) + float(configs.get("file.delete.delay.ms", 0)))
        return now + kept + BROKER_SLACK
    except OverflowError:
        return NEVER


def _milliseconds(configs: Mapping[str, str], name: str) -> float:
    """Return the setting in milliseconds, or infinity if it is unknown or unlimited."""
    value = int(configs.get(name, -1))
    return float("inf") if value in UNBOUNDED else value
