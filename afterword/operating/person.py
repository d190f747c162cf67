"""A person to erase: which conversations, records and dead letters are theirs, and the receipt of the erasure.

The receipt says what was deleted, and the date by which Kafka removes it from each topic. `verify` checks it at any
later time. The stores must have nothing of the person, and topics keep their records until their dates. Data that
arrived after the receipt does not count.
"""

import hashlib
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from errno import EEXIST
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import orjson
from aiokafka import ConsumerRecord
from pydantic import BaseModel, ConfigDict, ValidationError

from afterword.operating.dlq import resolved_offset
from afterword.operating.topics import UNBOUNDED
from afterword.schemas.base import Time, conversation_of_episode, conversation_of_scope, rfc3339, user_digest
from afterword.schemas.dead_letters import ARCHIVE, INGEST, WEBHOOKS, DeadLetter, read_dead_letter, users_in
from afterword.schemas.episodes import EPISODE_AMENDED, EPISODE_REDO
from afterword.schemas.messages import MESSAGE_EDITED, Move, givers, owner
from afterword.schemas.records import (
    CE_TYPE,
    InvalidRecord,
    RecordHeaders,
    header,
    id_of,
    json_object,
    loads,
    read_event,
)
from afterword.streams.errors import AfterwordError, ConfigurationError, RowUnreadable, StateUnreadable
from afterword.streams.ingest.sources import DEAD_LETTERS, KEYS, Expression, Source, context, items_of, load_sources
from afterword.streams.kafka.clients import broker_errors
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.private import write_private
from afterword.streams.segmenter.processor import STAGE as SEGMENTER
from afterword.streams.segmenter.state import CONVERSATIONS, MESSAGES, decode_body, parse_key
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.episodes import DeletedEpisode, EpisodeQueries, StoredEpisode, all_episodes
from afterword.streams.stores.messages import MessageArchive, Selection
from afterword.streams.stores.opening import Stores, open_stores
from afterword_text.visible import many

PAGE = 20
"""Number of conversations looked up at once. Other work waits for MongoDB meanwhile."""
OF_OTHERS = ("tenant_mismatch", "user_mismatch")
"""Error types of records in a conversation that another tenant or user wrote into it."""
FRAME_BYTES = 5
"""A zero byte and a schema's id, which precede a value that was written with a schema registry."""


class Person(NamedTuple):
    """The user to erase, matched exactly, in one tenant."""

    user_id: str
    tenant_id: str | None
    """None for messages without a tenant."""

    def digest(self, salt: str) -> str:
        """Return a salted SHA-256 of tenant and user, in hex; whoever knows both can check whose receipt it is."""
        return hashlib.sha256(orjson.dumps([salt, self.user_id, self.tenant_id])).hexdigest()

    def took_part_in(self, episode: StoredEpisode) -> bool:
        return episode.summary.tenant_id == self.tenant_id and self.user_id in episode.participants


def person_of(user_id: str, tenant_id: str | None) -> Person:
    """Build a person.

    Raises: TypeError; ValueError for an empty user id, which producers send when they know no user.
    """
    if not isinstance(user_id, str) or not isinstance(tenant_id, str | None):
        raise TypeError("user_id must be str, tenant_id str or None")
    if not user_id:
        raise ValueError("user_id is empty, so it names nobody")
    return Person(user_id, tenant_id)


def holds(value: bytes | None, person: Person) -> bool:
    """Return whether a record's value is the person's: a message, an episode or a summary, or a list of them.

    A structured CloudEvent has its event in `data`. A truncated value, which is not JSON, is theirs if one of its
    `user_id` fields has their id. It may not name a tenant, but neither can ever be processed, so discarding it loses
    nothing.
    """
    data = value or b""
    try:
        left = [loads(data)]
    except orjson.JSONDecodeError:
        return person.user_id in users_in(data)
    while left:
        event = left.pop()
        if isinstance(event, list):
            left += event
        elif isinstance(event, dict):
            left.append(event.get("data"))
            lists = [each for name in ("messages", "overlap") if isinstance(each := event.get(name), list)]
            users = [each.get("user_id") for each in (event, *chain(*lists)) if isinstance(each, dict)]
            if event.get("tenant_id") == person.tenant_id and person.user_id in users:
                return True
    return False


def _names(person: Person, text: str) -> bool:
    """Return whether the person's id is a word of the text."""
    return bool(re.search(rf"(?<!\w){re.escape(person.user_id)}(?!\w)", text))


def edited_id(value: bytes | None, headers: RecordHeaders, person: Person) -> str | None:
    """Return the id of the message that a record edits in the person's tenant, or "" if it is unreadable.

    It is None for any other record. An edit contains words of the message's author, but names no user.
    """
    try:
        data, event_type = read_event(value, headers)
        event = json_object(data)
    except InvalidRecord:  # for example, the value was truncated
        edited = MESSAGE_EDITED.encode()
        return "" if (CE_TYPE, edited) in headers or edited in (value or b"") else None
    if event_type != MESSAGE_EDITED or event.get("tenant_id") != person.tenant_id:
        return None
    message_id = event.get("id")
    return message_id if isinstance(message_id, str) else ""


def is_of_source(letter: DeadLetter, sources: Sequence[Source], person: Person) -> bool:
    """Return whether a record that ingest rejected visibly holds data of the person.

    A JSON record is theirs if the source's mapping finds their id as its user. If the mapping finds no user, the record
    is theirs if their id is a word in it. Other records, such as Avro, are theirs if their bytes contain the id.
    """
    data, origin = letter.value or b"null", letter.origin
    source = next((each for each in sources if origin and each.takes(origin.topic)), None)
    try:
        value = loads(data[FRAME_BYTES:] if data.startswith(b"\0") else data)
        record = replace(letter, **origin._asdict()) if origin else letter
        about = context(record, value, source.key_format if source else "text")
        text = orjson.dumps([about["key"], value, about["headers"]], lambda _: None).decode()
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        parts = b"\n".join([letter.key or b"", data, *(said for _, said in letter.headers)])
        return person.user_id.encode() in parts
    items = [about]
    is_key_read = source is None or source.key_format in KEYS
    if source:
        with suppress(InvalidRecord):
            items = items_of(source, about)
        items = [each for each in items if _found(source.map.tenant_id, each) == person.tenant_id]
        users = [_found(source.map.user_id, each) for each in items]
        if None not in users:
            return person.user_id in users
    if not is_key_read or isinstance(about["key"], InvalidRecord):
        return _names(person, text) or person.user_id.encode() in (letter.key or b"")
    return _names(person, text)


def _found(expression: Expression | None, about: Mapping[str, Any]) -> str | None:
    with suppress(InvalidRecord):
        return None if expression is None else id_of(expression.find(about))
    return None


@dataclass(frozen=True)
class TheirDeadLetters:
    """Selects dead letters of conversations that were the person's alone, and others that contain their data.

    In a shared conversation every summary is selected, because it may contain their words and a higher revision
    follows. A truncated record of a shared conversation is selected unless its remains show that it is not theirs.
    """

    person: Person
    alone: frozenset[str]
    shared: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    """Addresses of edits in shared conversations that change somebody else's message."""
    moves: Mapping[str, Sequence[Move]] = field(default_factory=dict)
    """Assignments of messages, by conversation."""
    sources: Sequence[Source] = ()

    def edited(self, dead_letter: DeadLetter) -> str | None:
        """Return the id of the message that a record of a shared conversation edits, as `edited_id` does."""
        is_shared = dead_letter.conversation_id in self.shared
        return edited_id(dead_letter.value, dead_letter.headers, self.person) if is_shared else None

    def _was_assigned(self, dead_letter: DeadLetter) -> bool:
        """Return whether a record under another user's id is the person's, since it was assigned to them."""
        if not (moves := self.moves.get(dead_letter.conversation_id or "")):
            return False
        users = {user_digest(user) for user in {*dead_letter.users, *users_in(dead_letter.value or b"")}}
        person = user_digest(self.person.user_id)
        if dead_letter.origin and dead_letter.stage in (SEGMENTER, ARCHIVE):
            return person in {owner(moves, user, dead_letter.origin.offset) for user in users - {person}}
        return bool(users & givers(moves, person))  # an episode may be of before and after

    def __call__(self, dead_letter: DeadLetter) -> bool:
        if dead_letter.stage == INGEST:
            return is_of_source(dead_letter, self.sources, self.person)
        is_of_theirs = dead_letter.conversation_id in self.alone and dead_letter.error_type not in OF_OTHERS
        is_shared = dead_letter.conversation_id in self.shared
        may_have_their_words = dead_letter.stage == WEBHOOKS or (dead_letter.truncated and not dead_letter.users)
        return (
            is_of_theirs
            or (is_shared and may_have_their_words)
            or (dead_letter.address not in self.others and self.edited(dead_letter) is not None)
            or self.person.user_id in dead_letter.users
            or self._was_assigned(dead_letter)
            or holds(dead_letter.value, self.person)
        )


async def conversations_of(episodes: EpisodeQueries, messages: MessageArchive, person: Person) -> AsyncIterator[str]:
    """Yield the conversations in which the person may have taken part, by id. Raises: StoreUnavailable."""
    page = [""]
    while page:
        wanted = person.user_id, person.tenant_id, page[-1] or None, PAGE
        names = {*await messages.conversations_of(*wanted), *await episodes.conversations_of(*wanted)}
        page = sorted(names, key=str.encode)[:PAGE]
        for conversation in page:
            yield conversation


async def deleted_but_indexed(stores: Stores, conversation_id: str) -> int:
    """Count a conversation's deleted episodes that are still in the index. Raises: StoreUnavailable."""
    every = all_episodes(stores.episodes, conversation_id)
    deleted = [episode.event.episode_id async for episode in every if isinstance(episode, DeletedEpisode)]
    return len(await stores.index.revisions(deleted)) if deleted else 0


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
