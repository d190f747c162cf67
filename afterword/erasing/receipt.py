"""The receipt of an erasure: what was deleted, and the date from which each topic has lost it too."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from afterword.erasing.person import Person
from afterword.schemas.base import Time, rfc3339
from afterword.streams.errors import AfterwordError, ConfigurationError
from afterword.streams.private import write_private
from afterword.streams.text.visible import many
from afterword.topics import UNBOUNDED

Never = Literal["never"]
NEVER: Never = "never"
BROKER_SLACK = timedelta(minutes=15)
"""Kafka looks for what is to be removed every 5 minutes (log.retention.check.interval.ms), compacts when a thread is
free, and unlinks a file after `file.delete.delay.ms`, a minute."""


class ReceiptUnreadable(AfterwordError):
    """{path} is no receipt: {problem}"""


class ReceiptNotWritten(AfterwordError):
    """the receipt cannot be written to {path}: {problem}"""


class NotTheirs(ConfigurationError):
    """{setting}: the receipt is not of this user in this tenant"""


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TopicDate(Frozen):
    """Moment at which a topic has lost what it held of the person at the time of the receipt."""

    topic: str
    gone_by: Time | Never
    """`never`: its settings do not bound it."""
    ends: dict[int, int]
    """The end of each partition at the time of the receipt; later records are not meant."""
    ours: bool = True
    """False for the topic of the messages, which is only reported."""


class Receipt(Frozen):
    """Proof of what was erased. It does not name the user."""

    receipt_id: str
    asked_by: str | None
    asked_at: Time
    finished_at: Time
    person: str
    """SHA-256 of `["RECEIPT_ID","USER","TENANT"]`, by which user and tenant can be checked."""
    conversation_id: str | None
    """The only conversation that was asked for; null: all."""
    deleted_conversations: tuple[str, ...]
    """Conversations in which nobody else had written."""
    shared_conversations: tuple[str, ...]
    """Conversations in which others' messages stay."""
    counts: dict[str, int]
    """Counts of messages, conversations, episodes of which the person was a participant, and dead letters."""
    topics: tuple[TopicDate, ...]

    def line(self) -> str:
        """One line for people."""
        dates = [topic.gone_by for topic in self.topics if topic.ours]
        last = max((rfc3339(date) for date in dates if isinstance(date, datetime)), default="–")
        counts = ", ".join(many(number, name.removesuffix("s"), name) for name, number in self._named_counts())
        return (
            f"receipt {self.receipt_id}: {counts}; gone from all stores at {rfc3339(self.finished_at)}, "
            f"from our topics by {NEVER if NEVER in dates else last}"
        )

    def _named_counts(self) -> list[tuple[str, int]]:
        return [(name.replace("_", " "), number) for name, number in self.counts.items()]

    def is_of(self, person: Person) -> bool:
        """Return whether it is the receipt of this user in this tenant."""
        return person.digest(self.receipt_id) == self.person

    @property
    def conversations(self) -> frozenset[str]:
        return frozenset((*self.deleted_conversations, *self.shared_conversations))

    @property
    def unbounded(self) -> list[str]:
        """Topics of ours that keep what they have for ever."""
        return [topic.topic for topic in self.topics if topic.ours and topic.gone_by == NEVER]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises: ReceiptUnreadable."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ReceiptUnreadable(path=path, problem=error.strerror or type(error).__name__) from None
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise ReceiptUnreadable(path=path, problem=problem) from None

    def write(self, path: Path) -> None:
        """Write it for its user alone, in one step, and over no other file. Raises: ReceiptNotWritten."""
        if path.exists():
            raise ReceiptNotWritten(path=path, problem="there is a file already")
        try:
            write_private(path, self.model_dump_json(indent=2).encode() + b"\n")
        except OSError as error:
            raise ReceiptNotWritten(path=path, problem=error.strerror or type(error).__name__) from None


def gone_by(configs: Mapping[str, str], now: datetime) -> datetime | Never:
    """Return when a topic of this configuration has lost what was deleted or replaced by now.

    With `delete`, a segment goes when its youngest record is `retention.ms` old, which is up to `segment.ms` younger
    than another one in it. With `compact`, a segment ends after `segment.ms` or `max.compaction.lag.ms`, whichever is
    less, and is compacted `max.compaction.lag.ms` later. Brokers look at the age of the active segment only when they
    append to it: without traffic it stays.
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
    """Return the setting; infinity if it is not known, or means that there is no limit."""
    value = int(configs.get(name, -1))
    return float("inf") if value in UNBOUNDED else value
