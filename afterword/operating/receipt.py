"""The receipt of an erasure: what was deleted, and the date by which Kafka removes it from each topic.

`verify` checks a receipt at any later time. The stores must have nothing of the person, and topics keep their records
until their dates. Data that arrived after the receipt does not count.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from errno import EEXIST
from pathlib import Path
from typing import Literal, NamedTuple, Self

import orjson
from aiokafka import ConsumerRecord
from pydantic import BaseModel, ConfigDict, ValidationError

from afterword.operating.dlq import resolved_offset
from afterword.operating.person import (
    Person,
    TheirDeadLetters,
    conversations_of,
    deleted_but_indexed,
    holds,
    person_of,
)
from afterword.operating.topics import UNBOUNDED
from afterword.schemas.base import Time, conversation_of_episode, conversation_of_scope, rfc3339
from afterword.schemas.dead_letters import read_dead_letter
from afterword.schemas.episodes import EPISODE_AMENDED, EPISODE_REDO
from afterword.schemas.records import CE_TYPE, header
from afterword.streams.errors import AfterwordError, ConfigurationError, RowUnreadable, StateUnreadable
from afterword.streams.ingest.sources import DEAD_LETTERS, load_sources
from afterword.streams.kafka.clients import broker_errors
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.private import write_private
from afterword.streams.segmenter.state import CONVERSATIONS, MESSAGES, decode_body, parse_key
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.episodes import StoredEpisode, all_episodes
from afterword.streams.stores.messages import Selection
from afterword.streams.stores.opening import Stores, open_stores
from afterword_text.visible import many

Never = Literal["never"]
NEVER: Never = "never"
BROKER_SLACK = timedelta(minutes=15)
"""Kafka looks for expired segments every 5 minutes (log.retention.check.interval.ms), compacts when a thread is free,
and deletes a file after `file.delete.delay.ms`, a minute."""


class ReceiptUnreadable(AfterwordError):
    """{path} is not a receipt: {problem}"""


class NotTheirs(ConfigurationError):
    """{setting}: the receipt is not for this user in this tenant"""


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TopicDate(Frozen):
    """The date by which Kafka has removed the person's data that a topic held at the time of the receipt."""

    topic: str
    gone_by: Time | Never
    """`never` if the topic's settings do not limit it."""
    ends: dict[int, int]
    """The end of each partition at the time of the receipt. Later records do not count."""
    ours: bool = True
    """False for the messages topic, which is only reported."""


class Receipt(Frozen):
    """Proof of what was erased. It does not name the user."""

    receipt_id: str
    asked_by: str | None
    asked_at: Time
    finished_at: Time
    person: str
    """SHA-256 of `["RECEIPT_ID","USER","TENANT"]`, with which user and tenant can be checked."""
    deleted_conversations: tuple[str, ...]
    """Conversations in which nobody else had written."""
    shared_conversations: tuple[str, ...]
    """Conversations in which other people's messages remain."""
    counts: dict[str, int]
    """Number of messages, conversations, episodes that the person took part in, and dead letters."""
    topics: tuple[TopicDate, ...]

    def line(self) -> str:
        """Format the receipt as one line for people."""
        dates = {topic.topic: topic.gone_by for topic in self.topics if topic.ours}
        yours = {topic.topic: topic.gone_by for topic in self.topics if not topic.ours}
        last = max((rfc3339(date) for date in dates.values() if isinstance(date, datetime)), default="–")
        endless = ", ".join(name for name, date in dates.items() if date == NEVER)
        gone = f"from our topics by {last}" + (f", but never from {endless}; see: afterword check" if endless else "")
        named = {name.replace("_", " "): number for name, number in self.counts.items()}
        counts = ", ".join(many(number, name.removesuffix("s"), name) for name, number in named.items())
        ends = {name: f"until {rfc3339(date)}" if date != NEVER else "for ever" for name, date in yours.items()}
        kept = "".join(f"; your topic {name} keeps its records {end}" for name, end in ends.items())
        return f"receipt {self.receipt_id}: {counts}; gone from all stores at {rfc3339(self.finished_at)}, {gone}{kept}"

    def is_of(self, person: Person) -> bool:
        """Return whether the receipt is for this user in this tenant."""
        return person.digest(self.receipt_id) == self.person

    @property
    def conversations(self) -> frozenset[str]:
        return frozenset((*self.deleted_conversations, *self.shared_conversations))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a receipt from a file. Raises: ReceiptUnreadable, OSError."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise ReceiptUnreadable(path=path, problem=problem) from None

    def write(self, path: Path) -> None:
        """Write a new private file atomically. Raises: OSError, also if the file exists."""
        if path.exists():
            raise FileExistsError(EEXIST, os.strerror(EEXIST), str(path))
        write_private(path, self.model_dump_json(indent=2).encode() + b"\n")


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


class Remains(NamedTuple):
    """Data that is left in one place."""

    place: str
    number: int
    late: bool
    """Whether it should be gone by now."""
    gone_by: datetime | Never | None = None
    """None if it should already be gone; `never` if the topic's settings keep it forever."""

    def line(self) -> str:
        if self.gone_by is None:
            due = "should be gone"
        elif isinstance(self.gone_by, datetime):
            due = f"{'should have been' if self.late else 'will be'} gone by {rfc3339(self.gone_by)}"
        else:
            due = "never expires, because of the topic's settings"
        return f"{self.place}: {self.number:,}, {due}"


async def verify(
    settings: Settings, receipt: Receipt, user_id: str, tenant_id: str | None, now: datetime | None = None
) -> list[Remains]:
    """Search the stores, and every topic that may hold the person's words, for what a receipt says is gone.

    Returns what is left. `messages` is not searched, because it keeps everything until its date.

    Raises: NotTheirs if the receipt is for somebody else; StoreUnavailable, BrokerUnavailable, TopicStalled.
    """
    person = person_of(user_id, tenant_id)
    if not receipt.is_of(person):
        raise NotTheirs(setting="--user")
    now, kafka = now or datetime.now(UTC), settings.kafka
    async with open_stores(settings) as stores:
        remains = await left_in_stores(stores, receipt, person, kafka.messages_topic)
    conversations = frozenset(receipt.deleted_conversations), frozenset(receipt.shared_conversations)
    records = Records(kafka, TheirDeadLetters(person, *conversations, sources=load_sources(settings)))
    # the last two have only ids and counters
    unsearched = {kafka.messages_topic, kafka.deletions_topic, kafka.changelog(CONVERSATIONS)}
    with broker_errors(kafka.bootstrap_servers):
        async with open_log(kafka) as log:
            existing = await log.topics() - unsearched
            for date in (each for each in receipt.topics if each.topic in existing):
                last: dict[bytes | None, bool] = {}
                number = 0
                async for record in log.records(date.topic):
                    is_theirs = record.offset < date.ends.get(record.partition, 0) and records.are_theirs(record)
                    number += is_theirs
                    if records.is_current_of_shared(record):
                        last[record.key] = is_theirs
                late = isinstance(date.gone_by, datetime) and date.gone_by < now
                remains.append(Remains(date.topic, number - sum(last.values()), late, date.gone_by))
    return [each for each in remains if each.number]


async def left_in_stores(stores: Stores, receipt: Receipt, person: Person, messages_topic: str) -> list[Remains]:
    """Count the data that predates the receipt. Messages that the person wrote later may stay."""
    [ends] = [date.ends for date in receipt.topics if date.topic == messages_topic]
    messages = episodes = 0
    async for name in conversations_of(stores.episodes, stores.messages, person):
        newest = stores.messages.newest(Selection(name, person.tenant_id, user_id=person.user_id))
        messages += sum([1 async for each in newest if each.offset < ends.get(each.partition, 0)])
        async for each in all_episodes(stores.episodes, name):
            if isinstance(each, StoredEpisode) and person.took_part_in(each):
                episodes += each.summary.closed_at < receipt.finished_at
    points = sum([await deleted_but_indexed(stores, name) for name in receipt.conversations])
    counts = {"messages in the archive": messages, "episodes": episodes, "deleted episodes in the index": points}
    return [Remains(place, number, late=True) for place, number in counts.items()]


@dataclass(frozen=True)
class Records:
    """Decides which records on our topics contain data of the person."""

    kafka: Kafka
    theirs: TheirDeadLetters

    def are_theirs(self, record: ConsumerRecord) -> bool:
        theirs, value = self.theirs, record.value
        if record.topic.endswith(DEAD_LETTERS):
            return resolved_offset(record) is None and theirs(read_dead_letter(record))
        if record.topic == self.kafka.changelog(MESSAGES):
            return self._is_pending_message(record)
        event_type = header(record.headers, CE_TYPE)
        if not value or event_type == EPISODE_REDO or (event_type == EPISODE_AMENDED and b'"fields":{}' in value):
            return False  # such a record has only ids
        conversation = self._conversation_of(record)
        if conversation in theirs.shared and record.topic != self.kafka.episodes_topic:
            return True  # a summary of a shared conversation may contain their words
        return conversation in theirs.alone or holds(value, theirs.person)

    def is_current_of_shared(self, record: ConsumerRecord) -> bool:
        """Return whether the record is on a compacted topic and about a shared conversation.

        The last record of such a key was made without the person's words, so it stays.
        """
        return record.topic in self.kafka.current_topics and self._conversation_of(record) in self.theirs.shared

    def _conversation_of(self, record: ConsumerRecord) -> str:
        key = (record.key or b"").decode(errors="replace")
        episodes, conversations = self.kafka.current_topics
        if record.topic == episodes:
            return conversation_of_episode(key)
        return conversation_of_scope(key)[0] if record.topic == conversations else key

    def _is_pending_message(self, record: ConsumerRecord) -> bool:
        if not record.value:
            return False
        user_id = self.theirs.person.user_id
        try:
            scope, seq = parse_key(record.key)
            body = None if seq is None else decode_body(record.value)
        except (RowUnreadable, StateUnreadable):
            return orjson.dumps(user_id) in record.value
        if body is None or body.is_gone or scope.conversation_id not in self.theirs.alone | self.theirs.shared:
            return False
        return bool(orjson.loads(body.json).get("user_id") == user_id)
