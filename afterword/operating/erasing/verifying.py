"""Checks at any time after an erasure what is left of the person, and whether its date has passed.

Stores must have nothing. Topics keep their records until their dates. Whatever came after the receipt does not count.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import orjson
from aiokafka import ConsumerRecord

from afterword.operating.dlq import resolved_offset
from afterword.operating.erasing.eraser import conversation_pages, deleted_but_indexed
from afterword.operating.erasing.person import Person, TheirDeadLetters, holds, person_of
from afterword.operating.erasing.receipt import Never, NotTheirs, Receipt
from afterword.operating.export import took_part
from afterword.schemas.base import rfc3339
from afterword.schemas.dead_letters import read_dead_letter
from afterword.schemas.episodes import EPISODE_AMENDED, EPISODE_REDO
from afterword.schemas.headers import CE_TYPE, header
from afterword.schemas.ids import conversation_of_episode, conversation_of_scope
from afterword.streams.errors import RowUnreadable, StateUnreadable
from afterword.streams.ingest.sources import DEAD_LETTERS, Source, load_sources
from afterword.streams.kafka.clients import broker_errors
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.segmenter.state import CONVERSATIONS, MESSAGES, decode_body, parse_key
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.episodes import StoredEpisode, all_episodes
from afterword.streams.stores.messages import Selection
from afterword.streams.stores.opening import Stores, open_stores


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
    person = person_of(user_id, tenant_id, receipt.conversation_id)
    if not receipt.is_of(person):
        raise NotTheirs(setting="--user")
    now, kafka = now or datetime.now(UTC), settings.kafka
    async with open_stores(settings) as stores:
        found = await left_in_stores(stores, receipt, person, kafka.messages_topic)
    records = Records(kafka, receipt, person, load_sources(settings))
    # the last two have only ids and counters
    unsearched = {kafka.messages_topic, kafka.deletions_topic, kafka.changelog(CONVERSATIONS)}
    with broker_errors(kafka.bootstrap_servers):
        async with open_log(kafka) as log:
            existing = await log.topics() - unsearched
            for date in (one for one in receipt.topics if one.topic in existing):
                last: dict[bytes | None, bool] = {}
                number = 0
                async for record in log.records(date.topic):
                    is_theirs = record.offset < date.ends.get(record.partition, 0) and records.are_theirs(record)
                    number += is_theirs
                    if records.is_current_of_shared(record):
                        last[record.key] = is_theirs
                late = isinstance(date.gone_by, datetime) and date.gone_by < now
                found.append(Remains(date.topic, number - sum(last.values()), late, date.gone_by))
    return [one for one in found if one.number]


async def left_in_stores(stores: Stores, receipt: Receipt, person: Person, messages_topic: str) -> list[Remains]:
    """Count the data that predates the receipt. Messages that the person wrote later may stay."""
    [ends] = [date.ends for date in receipt.topics if date.topic == messages_topic]
    messages = episodes = 0
    async for page in conversation_pages(stores, person):
        for name in page:
            newest = stores.messages.newest(Selection(name, person.tenant_id, user_id=person.user_id))
            messages += sum([1 async for one in newest if one.offset < ends.get(one.partition, 0)])
            async for one in all_episodes(stores.episodes, name):
                if isinstance(one, StoredEpisode) and took_part(one, person.user_id, person.tenant_id):
                    episodes += one.summary.closed_at < receipt.finished_at
    points = sum([await deleted_but_indexed(stores, name) for name in receipt.conversations])
    counts = {"messages in the archive": messages, "episodes": episodes, "deleted episodes in the index": points}
    return [Remains(place, number, late=True) for place, number in counts.items()]


class Records:
    """Decides which records on our topics contain data of the person."""

    def __init__(self, kafka: Kafka, receipt: Receipt, person: Person, sources: Sequence[Source] = ()) -> None:
        self._kafka = kafka
        self._receipt = receipt
        self._person = person
        conversations = frozenset(receipt.deleted_conversations), frozenset(receipt.shared_conversations)
        self._letters = TheirDeadLetters(person, *conversations, sources=sources)
        self._current = kafka.current_episodes_topic, kafka.current_conversations_topic

    def are_theirs(self, record: ConsumerRecord) -> bool:
        kafka, value = self._kafka, record.value
        if record.topic.endswith(DEAD_LETTERS):
            return resolved_offset(record) is None and self._letters(read_dead_letter(record))
        if record.topic == kafka.changelog(MESSAGES):
            return self._is_pending_message(record)
        event_type = header(record.headers, CE_TYPE)
        if not value or event_type == EPISODE_REDO or (event_type == EPISODE_AMENDED and b'"fields":{}' in value):
            return False  # such a record has only ids
        conversation = self._conversation_of(record)
        if self._person.conversation_id not in (None, conversation):
            return False
        if conversation in self._receipt.shared_conversations and record.topic != kafka.episodes_topic:
            return True  # a summary of a shared conversation may contain their words
        return conversation in self._receipt.deleted_conversations or holds(value, self._person)

    def is_current_of_shared(self, record: ConsumerRecord) -> bool:
        """Return whether the record is on a compacted topic and about a shared conversation.

        The last record of such a key was made without the person's words, so it stays.
        """
        return record.topic in self._current and self._conversation_of(record) in self._receipt.shared_conversations

    def _conversation_of(self, record: ConsumerRecord) -> str:
        key = (record.key or b"").decode(errors="replace")
        episodes, conversations = self._current
        if record.topic == episodes:
            return conversation_of_episode(key)
        return conversation_of_scope(key)[0] if record.topic == conversations else key

    def _is_pending_message(self, record: ConsumerRecord) -> bool:
        if not record.value:
            return False
        try:
            scope, seq = parse_key(record.key)
            body = None if seq is None else decode_body(record.value)
        except (RowUnreadable, StateUnreadable):
            return orjson.dumps(self._person.user_id) in record.value
        if body is None or body.is_gone or scope.conversation_id not in self._receipt.conversations:
            return False
        return bool(orjson.loads(body.json).get("user_id") == self._person.user_id)
