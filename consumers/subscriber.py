"""Typed events of `summary.created`, for Python services."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Literal, Self

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError

from afterword.schemas import InvalidRecord, SummaryCreated
from afterword.schemas.decoding import check_key, validate
from afterword.schemas.headers import CE_ID, CE_TYPE, header
from afterword.schemas.summaries import SUMMARY_CREATED
from afterword.streams.kafka import client_options, require_topics, security_of, start_client
from afterword.streams.settings import Kafka, Settings, load_settings

log = structlog.get_logger(__name__)

REPEATS_REMEMBERED = 10_000
"""Ids of processed events. The summarizer repeats an event after a restart, so a repeat follows soon."""

OnInvalid = Callable[[ConsumerRecord, InvalidRecord], None]


class SummarySubscriber(AbstractAsyncContextManager["SummarySubscriber"], AsyncIterator[SummaryCreated]):
    """Iterate over typed events, one at a time, each at least once:

        async with SummarySubscriber(bootstrap_servers="kafka:9092", group_id="crm") as events:
            async for event in events:
                await store(event)

    An event counts as processed when the next one is asked for, or when the block ends without an exception; only then
    is its offset committed. If the block ends with an exception (a cancellation too) or the process dies, the event
    comes again.

    A processed event that is repeated under the same `ce_id` is dropped. The last `remember` ids are kept in memory, so
    a repeat after a restart, or after the partition has moved to another member, is seen again. Where that matters,
    make your own write idempotent by `event.event_id`.

    A record that is not a valid `summary.created` is skipped, because it would be as invalid the next time: it is
    logged as a warning without its content and passed to `on_invalid`, if given. Raise there to stop instead; the
    record then stays uncommitted. Records of another `ce_type` are ignored, because later versions may announce more on
    this topic.

    `topic`: see `kafka.summaries_topic`. `start_from`: where a group without committed offsets begins. `options`:
    further arguments of `AIOKafkaConsumer`. `from_settings` fills in servers, topic, TLS and SASL.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        group_id: str,
        topic: str = SUMMARY_CREATED,
        start_from: Literal["earliest", "latest"] = "earliest",
        remember: int = REPEATS_REMEMBERED,
        on_invalid: OnInvalid | None = None,
        **options: Any,
    ) -> None:
        self._kafka = Kafka(bootstrap_servers=bootstrap_servers)
        self._topic = topic
        self._options = {"group_id": group_id, "auto_offset_reset": start_from, **options}
        self._on_invalid = on_invalid
        self._processed = RecentIds(remember)
        self._current_id: str | None = None
        self._progress = Progress()
        self._consumer: AIOKafkaConsumer

    @classmethod
    def from_settings(cls, settings: Settings | None = None, *, group_id: str, **options: Any) -> Self:
        """Build a subscriber for the servers, topic, TLS and SASL of the settings; None loads them.

        `options`: as for the class itself. Raises: ConfigurationError.
        """
        kafka = (settings or load_settings()).kafka
        ours = {**client_options(kafka), "topic": kafka.summaries_topic, "group_id": group_id}
        return cls(**ours | options)

    async def __aenter__(self) -> Self:
        """Connect and join the group. Raises: BrokerUnavailable, TopicMissing."""
        await require_topics(self._kafka, self._topic, **security_of(self._options))
        self._current_id, self._progress = None, Progress()
        ours = client_options(self._kafka) | {"enable_auto_commit": False, "isolation_level": "read_committed"}
        options = ours | self._options
        self._consumer = AIOKafkaConsumer(**options)
        self._consumer.subscribe([self._topic], listener=self._progress)
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

    async def __anext__(self) -> SummaryCreated:
        """Return the next event; the one before it counts as processed."""
        while True:
            await self._settle()
            record = await self._consumer.getone()
            event = self._event(record)
            self._progress.passed(record)
            if event is not None:
                self._current_id = header(record.headers, CE_ID) or event.event_id
                if self._current_id not in self._processed:
                    return event

    async def _settle(self) -> None:
        if self._current_id is not None:
            self._processed.add(self._current_id)
            self._current_id = None
        await self._progress.commit(self._consumer)

    def _event(self, record: ConsumerRecord) -> SummaryCreated | None:
        try:
            return decode(record)
        except InvalidRecord as error:
            where = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
            log.warning("record_skipped", stage="subscribe", error_type=error.error_type, **where)
            if self._on_invalid is not None:
                self._on_invalid(record, error)
            return None


def decode(record: ConsumerRecord) -> SummaryCreated | None:
    """Decode a record; None for one of another type. Raises: InvalidRecord."""
    if header(record.headers, CE_TYPE) not in (SUMMARY_CREATED, None):
        return None
    if record.value is None:
        raise InvalidRecord("empty_value", "the record has no value")
    event = validate(SummaryCreated, record.value)
    check_key(record.key, event.conversation_id)
    return event


class RecentIds:
    """The last `limit` ids, in order of use."""

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


class Progress(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is not typed
    """Offsets that may be committed.

    Those of a revoked partition are dropped: if it comes back after another member had it, they would set it back.
    """

    def __init__(self) -> None:
        self._offsets: dict[TopicPartition, int] = {}

    def passed(self, record: ConsumerRecord) -> None:
        self._offsets[TopicPartition(record.topic, record.partition)] = record.offset + 1

    async def commit(self, consumer: AIOKafkaConsumer) -> None:
        """Commit what was passed. A commit overtaken by a rebalance is dropped: the new owner reads the event again."""
        offsets, self._offsets = self._offsets, {}
        try:
            if offsets:
                await consumer.commit(offsets)
        except (CommitFailedError, IllegalStateError):
            log.info("commit_overtaken", stage="subscribe")

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        for partition in revoked:
            self._offsets.pop(partition, None)

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        pass
