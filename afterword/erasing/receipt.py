"""The receipt of an erasure: what was asked, what was found, and the date from which each topic has lost it too.

It names nobody: ids are SHA-256 with a salt that is kept in it, so that whoever has the id can check it.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from afterword.schemas.base import Time, rfc3339
from afterword.streams.errors import AfterwordError, ConfigurationError
from afterword.streams.private import write_private
from afterword.streams.visible import many
from afterword.topics import UNBOUNDED

VERSION = 1
Never = Literal["never"]
NEVER: Never = "never"
BROKER_SLACK = timedelta(minutes=15)
"""Kafka looks for what is to be removed every 5 minutes (log.retention.check.interval.ms), compacts when a thread is
free, and unlinks a file after `file.delete.delay.ms`, a minute."""

IdKind = Literal["user", "tenant", "conversation"]


class ReceiptUnreadable(AfterwordError):
    """{path} is no receipt: {problem}"""


class ReceiptNotWritten(AfterwordError):
    """the receipt cannot be written to {path}: {problem}. All is erased; run it again with another --receipt"""


class NotTheirs(ConfigurationError):
    """{setting}: the receipt is not of this {kind}"""


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TopicDate(Frozen):
    """Moment at which a topic has lost what it held of the person at the time of the receipt."""

    topic: str
    gone_by: Time | Never
    """`never`: its settings bound it by nothing."""
    because: str
    """The settings that it follows from."""
    ends: dict[int, int]
    """The end of each partition at the time of the receipt: what comes later is not meant."""
    ours: bool = True
    """False for the topic of the messages, which is only reported."""


class Receipt(Frozen):
    """Proof of what was erased, in a form that names nobody."""

    version: int = VERSION
    receipt_id: str
    asked_by: str | None
    asked_at: Time
    finished_at: Time
    salt: str
    user: str
    tenant: str | None
    conversation: str | None
    """The only conversation that was asked for; None: all."""
    deleted_conversations: tuple[str, ...]
    """Nobody else had written in them."""
    shared_conversations: tuple[str, ...]
    """Those in which others stay."""
    counts: dict[str, int]
    """Counts by place: messages, conversations, episodes of which the person was a participant, dead letters."""
    topics: tuple[TopicDate, ...]

    def line(self) -> str:
        """One line for people."""
        dates = [topic.gone_by for topic in self.topics if topic.ours]
        last = (
            NEVER
            if NEVER in dates
            else max((rfc3339(date) for date in dates if isinstance(date, datetime)), default="–")
        )
        names = {name: name.replace("_", " ") for name in self.counts}
        counts = ", ".join(many(self.counts[name], words.removesuffix("s"), words) for name, words in names.items())
        return (
            f"receipt {self.receipt_id}: {counts}; gone from all stores at {rfc3339(self.finished_at)}, "
            f"from the topics of ours by {last}"
        )

    def check(self, user_id: str, tenant_id: str | None) -> None:
        """Raises: NotTheirs, unless the receipt is of this person."""
        if salted_digest(self.salt, "user", user_id) != self.user:
            raise NotTheirs(setting="--user", kind="user")
        if (None if tenant_id is None else salted_digest(self.salt, "tenant", tenant_id)) != self.tenant:
            raise NotTheirs(setting="--tenant", kind="tenant")

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
        """Write it for its user alone, in one step. Raises: ReceiptNotWritten, also in place of any other file."""
        if path.exists() and not self._is_at(path):
            raise ReceiptNotWritten(path=path, problem="another file is there")
        try:
            write_private(path, self.model_dump_json(indent=2).encode() + b"\n")
        except OSError as error:
            raise ReceiptNotWritten(path=path, problem=error.strerror or type(error).__name__) from None

    def _is_at(self, path: Path) -> bool:
        """Return whether the file is this receipt, as of a run that was killed after it had written it."""
        try:
            return self.read(path).receipt_id == self.receipt_id
        except ReceiptUnreadable:
            return False

    @property
    def unbounded(self) -> list[str]:
        """Topics of ours that keep what they have for ever."""
        return [topic.topic for topic in self.topics if topic.ours and topic.gone_by == NEVER]


def salted_digest(salt: str, kind: IdKind, value: str) -> str:
    """SHA-256, in hexadecimal, of the UTF-8 of `salt:kind:id`."""
    return hashlib.sha256(f"{salt}:{kind}:{value}".encode()).hexdigest()


def gone_by(configs: Mapping[str, str], now: datetime) -> tuple[datetime | Never, str]:
    """Moment at which a topic of this configuration has lost what is not wanted any more now, and why.

    With `delete`, a segment goes when its youngest record is `retention.ms` old, which is up to `segment.ms` younger
    than another one in it. With `compact`, a segment ends after `segment.ms` or `max.compaction.lag.ms`, whichever is
    less, and is compacted `max.compaction.lag.ms` later: then what a later record of its key replaces is gone. Brokers
    look at the age of the segment that is written only when they append to it: without traffic it stays.
    """
    policy = configs.get("cleanup.policy", "delete")
    if "delete" in policy:
        names = ("retention.ms", "segment.ms")
        milliseconds = [_milliseconds(configs, name) for name in names]
    else:
        names = ("max.compaction.lag.ms", "segment.ms")
        lag, roll = (_milliseconds(configs, name) for name in names)
        milliseconds = [lag, roll if lag is None or roll is None else min(lag, roll)]
    because = f"cleanup.policy {policy}, " + ", ".join(f"{name} {configs.get(name, '?')}" for name in names)
    if None in milliseconds:
        return NEVER, because
    delay = timedelta(milliseconds=_milliseconds(configs, "file.delete.delay.ms") or 0)
    try:
        return now + timedelta(milliseconds=sum(filter(None, milliseconds))) + delay + BROKER_SLACK, because
    except OverflowError:
        return NEVER, because


def _milliseconds(configs: Mapping[str, str], name: str) -> int | None:
    """None: without a limit, or not known."""
    value = configs.get(name)
    return None if value is None or int(value) in UNBOUNDED else int(value)
