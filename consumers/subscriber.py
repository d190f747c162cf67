"""Typed `summary.created` and `summary.deleted` events for Python services."""

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)

from afterword.schemas import InvalidRecord, SummaryCreated, SummaryDeleted
from afterword.schemas.records import CE_ID, CE_TYPE, DELETION, FOR_ENDPOINT, check_key, header, validate
from afterword.schemas.summaries import SUMMARY_CREATED, SUMMARY_DELETED
from afterword.streams.kafka.clients import (
    client_options,
    connection_of,
    noting_address,
    require_topics,
    running_consumer,
    start_client,
)
from afterword.streams.settings import Kafka, Settings, load_settings

log = structlog.get_logger(__name__)

REPEATS_REMEMBERED = 10_000
"""How many ids of processed events to remember. Repeats normally follow soon after the original."""

STAGE = "subscribe"
METADATA_AGE_MS = 60_000
"""Longest time until a topic that was deleted and created again is read; aiokafka's default is five minutes."""
CURRENT_EPISODES = "afterword.episodes"
OnInvalid = Callable[[ConsumerRecord, InvalidRecord], None]


E = TypeVar("E", bound=SummaryCreated | SummaryDeleted)


class Subscriber(AbstractAsyncContextManager["Subscriber[E]"], AsyncIterator[E]):
    """Subscribes to the topics of summaries; see SummarySubscriber and RevisionSubscriber."""

    kinds: ClassVar[Any]
    """Classes of the events that it yields."""

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        group_id: str,
        topic: str = SUMMARY_CREATED,
        deletions_topic: str = SUMMARY_DELETED,
        from_state: bool = False,
        current_topic: str = CURRENT_EPISODES,
        auto_offset_reset: Literal["earliest", "latest"] = "earliest",
        on_invalid: OnInvalid | None = None,
        **options: Any,
    ) -> None:
        self._kafka = Kafka(bootstrap_servers=bootstrap_servers)
        changes = (topic, deletions_topic) if SummaryDeleted in self.kinds else (topic,)
        self._topics, self._decode = ((current_topic,), decode_current) if from_state else (changes, decode_revision)
        self._begins_with = auto_offset_reset
        self._options = {"bootstrap_servers": bootstrap_servers, "group_id": group_id, **options}
        self._on_invalid = on_invalid
        self._processed = RecentIds(REPEATS_REMEMBERED)
        self._current_id: str | None = None
        self._progress = PassedOffsets()
        self._finds_settings = False
        self._consumer: AIOKafkaConsumer

    @classmethod
    def from_settings(cls, settings: Settings | None = None, *, group_id: str, **options: Any) -> Self:
        """Build a subscriber for the servers, topics, TLS and SASL of the settings; None loads them.

        `options` are passed to the constructor. Raises: ConfigurationError.
        """
        kafka = (settings or load_settings()).kafka
        topics = {
            "topic": kafka.summaries_topic,
            "deletions_topic": kafka.deletions_topic,
            "current_topic": kafka.current_episodes_topic,
        }
        made = cls(**{**client_options(kafka), **topics, "group_id": group_id, **options})
        made._finds_settings = settings is None
        return made

    async def __aenter__(self) -> Self:
        """Connect and join the group. Raises: BrokerUnavailable, TopicMissing."""
        with noting_address(self._finds_settings):
            await require_topics(self._kafka, *self._topics, **connection_of(self._options))
        self._current_id, self._progress = None, PassedOffsets()
        ours = client_options(self._kafka) | {"enable_auto_commit": False, "isolation_level": "read_committed"}
        ours["metadata_max_age_ms"] = METADATA_AGE_MS
        options = (
            ours | self._options | {"auto_offset_reset": "none"}
        )  # `_reposition` decides, so that no records are skipped silently
        self._consumer = AIOKafkaConsumer(**options)
        self._consumer.subscribe(self._topics, listener=self._progress)
        try:
            await start_client(self._consumer, options)
        except BaseException:
            await self._consumer.stop()
            raise
        return self

    async def __aexit__(
        self, error: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self._settle()
        finally:
            await self._consumer.stop()

    async def __anext__(self) -> E:
        """Return the next event. The previous one then counts as processed."""
        while True:
            await self._settle()
            record = await self._record()
            if record is None:
                continue
            event = self._event(record)
            self._progress.moved(TopicPartition(record.topic, record.partition), record.offset + 1)
            if event is not None:
                self._current_id = header(record.headers, CE_ID) or event.event_id
                if self._current_id not in self._processed:
                    return event

    async def _record(self) -> ConsumerRecord | None:
        """Return the next record, or None if a partition has no position or one that is out of range."""
        try:
            return await self._consumer.getone()
        except NoOffsetForPartitionError as error:
            positions = {error.args[0]: None}
        except OffsetOutOfRangeError as error:
            positions = error.args[0]
        for source, position in positions.items():
            try:
                await self._reposition(source, position)
            except KafkaError as error:  # the partition has moved or no broker answers; the next fetch fails again
                if not error.retriable and not isinstance(error, (IllegalStateError, KafkaTimeoutError)):
                    raise
                where = {"topic": source.topic, "partition": source.partition}
                log.warning("reposition_failed", stage=STAGE, error_type=type(error).__name__, **where)
        return None

    async def _reposition(self, source: TopicPartition, position: int | None) -> None:
        """Seek to the group's position, or to the first record if the topic no longer has it.

        `position` is None if the group has no position.
        """
        first = int((await self._consumer.beginning_offsets([source]))[source])
        end = int((await self._consumer.end_offsets([source]))[source])
        if position is None:
            self._consumer.seek(source, first if self._begins_with == "earliest" else end)
            return
        start = position if first <= position <= end else first
        self._consumer.seek(source, start)
        self._progress.moved(source, start)
        if start != position:
            where = {"topic": source.topic, "partition": source.partition, "position": position, "next_offset": start}
            log.error("records_expired", stage=STAGE, error_type="expired", **where)

    async def _settle(self) -> None:
        if self._current_id is not None:
            self._processed.add(self._current_id)
            self._current_id = None
        await self._progress.commit(self._consumer)

    def _event(self, record: ConsumerRecord) -> E | None:
        if header(record.headers, FOR_ENDPOINT) is not None:
            return None
        try:
            event: Any = self._decode(record)
        except InvalidRecord as error:
            where = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
            log.warning("record_skipped", stage=STAGE, error_type=error.error_type, **where)
            if self._on_invalid is not None:
                self._on_invalid(record, error)
            return None
        wanted: E | None = event if isinstance(event, self.kinds) else None
        return wanted


class SummarySubscriber(Subscriber[SummaryCreated]):
    """Iterate over typed events, one at a time, each at least once:

        async with SummarySubscriber(bootstrap_servers="kafka:9092", group_id="crm") as events:
            async for event in events:
                await store(event)

    An event counts as processed when the next one is requested or the block ends without an exception; only then is
    its offset committed. If the block ends with an exception (including a cancellation) or the process dies, the event
    is delivered again.

    A repeat of a processed event with the same `ce_id` is dropped. The last 10,000 ids are kept in memory only, so
    you may see a repeat after a restart or after the partition has moved to another member. If that matters, make your
    own write idempotent by `event.event_id`.

    A record that is not a valid `summary.created` is skipped, because retrying cannot make it valid. It is logged as a
    warning without its content and passed to `on_invalid`, if given. Raise an exception there to stop instead; the
    record then stays uncommitted. Records with another `ce_type` are ignored, because later versions may announce more
    on this topic.

    If the group's offset is no longer on the topic, because events have expired or the topic was recreated, the error
    `records_expired` is logged with the offset, and reading continues with the first event that is left.

    `topic`: see the setting `kafka.summaries_topic`. `auto_offset_reset` applies only to a group without committed
    offsets, and `options` are further arguments of `AIOKafkaConsumer`. `from_settings` fills in servers, topic, TLS and
    SASL.

    With `from_state`, read the compacted topic `current_topic` instead: first the last summary of every episode that is
    not deleted, then changes as they come.
    """

    kinds: ClassVar = (SummaryCreated,)


class RevisionSubscriber(Subscriber[SummaryCreated | SummaryDeleted]):
    """SummarySubscriber that also yields deletions of summaries:

        async with RevisionSubscriber(bootstrap_servers="kafka:9092", group_id="crm") as events:
            async for event in events:
                if isinstance(event, SummaryDeleted):
                    await remove(event.episode_id, up_to=event.revision)
                else:
                    await store(event)

    Deletions have their own topic, so the two kinds may arrive in either order: for each `episode_id` keep the event
    with the highest `revision`, even if it is a deletion. `deletions_topic`: see the setting `kafka.deletions_topic`.
    With `from_state` both kinds are on one topic, in order; a deletion stays there for 30 days.
    """

    kinds: ClassVar = (SummaryCreated, SummaryDeleted)


def decode_revision(record: ConsumerRecord) -> SummaryCreated | SummaryDeleted | None:
    """Decode a summary or a deletion; None if it is of another type. Raises: InvalidRecord."""
    kind = header(record.headers, CE_TYPE)
    if kind == SUMMARY_DELETED:
        return _checked(SummaryDeleted, record, record.value, "conversation_id")
    if kind in (SUMMARY_CREATED, None):
        return _checked(SummaryCreated, record, record.value, "conversation_id")
    return None


def decode_current(record: ConsumerRecord) -> SummaryCreated | SummaryDeleted | None:
    """Decode a record of the compacted topic; None for a tombstone that we did not write. Raises: InvalidRecord."""
    if record.value is not None:
        return _checked(SummaryCreated, record, record.value, "episode_id")
    deletion = header(record.headers, DELETION)
    return None if deletion is None else _checked(SummaryDeleted, record, deletion.encode(), "episode_id")


def _checked(model: type[E], record: ConsumerRecord, value: bytes | None, key: str) -> E:
    """Decode an event, whose field `key` must be the record's key. Raises: InvalidRecord."""
    if value is None:
        raise InvalidRecord("empty_value", "the record has no value")
    event = validate(model, value)
    check_key(record.key, getattr(event, key))
    return event


@asynccontextmanager
async def watching(
    kafka: Kafka, *, from_beginning: bool = False
) -> AsyncIterator[AsyncIterator[SummaryCreated | SummaryDeleted]]:
    """Read summaries and deletions, each once, without a consumer group.

    Unless `from_beginning`, reading starts at the end of the topics.

    Raises: BrokerUnavailable, TopicMissing.
    """
    topics = kafka.summaries_topic, kafka.deletions_topic
    async with running_consumer(kafka, *topics, auto_offset_reset="earliest") as consumer:
        if not from_beginning:
            # not `seek_to_end`: if aiokafka is asking for the beginnings at that moment, it takes them for the ends
            for partition, offset in (await consumer.end_offsets(consumer.assignment())).items():
                consumer.seek(partition, offset)
        async with aclosing(_each_once(consumer)) as events:
            yield events


async def _each_once(consumer: AIOKafkaConsumer) -> AsyncGenerator[SummaryCreated | SummaryDeleted, None]:
    seen = RecentIds(REPEATS_REMEMBERED)
    async for record in consumer:
        try:
            event = decode_revision(record)
        except InvalidRecord as error:
            log.warning("record_skipped", stage="watch", error_type=error.error_type, offset=record.offset)
            continue
        if event is not None and event.event_id not in seen:
            seen.add(event.event_id)
            yield event


class RecentIds:
    """The `limit` most recently used ids."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, event_id: str) -> bool:
        return event_id in self._ids

    def add(self, event_id: str) -> None:
        self._ids[event_id] = None
        self._ids.move_to_end(event_id)
        if len(self._ids) > self._limit:
            self._ids.popitem(last=False)


class PassedOffsets(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is not typed
    """Offsets that may be committed.

    A revoked partition's offsets are dropped, because committing them after another member's would move the group back.
    """

    def __init__(self) -> None:
        self._offsets: dict[TopicPartition, int] = {}

    def moved(self, source: TopicPartition, position: int) -> None:
        self._offsets[source] = position

    async def commit(self, consumer: AIOKafkaConsumer) -> None:
        """Commit the offsets.

        If a rebalance overtakes the commit, the commit is dropped and the new owner reads the event again.
        """
        offsets, self._offsets = self._offsets, {}
        try:
            if offsets:
                await consumer.commit(offsets)
        except (CommitFailedError, IllegalStateError):
            log.info("commit_overtaken", stage=STAGE)

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        for partition in revoked:
            self._offsets.pop(partition, None)

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        pass
