"""How a Python service listens to `summary.created`."""

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
from afterword.streams.settings import Kafka

log = structlog.get_logger(__name__)

REPEATS_REMEMBERED = 10_000
"""Ids of the last events processed. The summarizer repeats an event after a restart, so the repeat follows soon."""

OnInvalid = Callable[[ConsumerRecord, InvalidRecord], None]


class SummarySubscriber(AbstractAsyncContextManager["SummarySubscriber"], AsyncIterator[SummaryCreated]):
    """Typed events, one at a time, each at least once:

        async with SummarySubscriber(bootstrap_servers="kafka:9092", group_id="crm") as events:
            async for event in events:
                await store(event)

    An event counts as processed when the next one is asked for, or when the block is left without an exception; only
    then its offset is committed. When the block is left by an exception (a cancellation too) or the process dies, the
    event under way comes again.

    An event that was processed is dropped when it is repeated under the same `ce_id`. The last `remember` ids are
    kept, in memory: a repeat after a restart, or after the partition moved to another member, is seen again. Where that
    matters, make your own write idempotent by `event.event_id`.

    A record that is no `summary.created` of this schema is skipped: it would be as invalid the next time, and must
    not stop what follows. It is logged as a warning without its content, and handed to `on_invalid`, if given; raise
    there to stop instead, and the record stays uncommitted. Records of another `ce_type` are passed over in silence,
    because later versions announce more on this topic.

    `topic`: see `kafka.summaries_topic`. `start_from`: where a group without committed offsets begins. `options`: any
    more arguments of `AIOKafkaConsumer`, such as `security_protocol` and what belongs to it; with Afterword's own
    settings, `**streams.kafka.security(settings.kafka)`.
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
        self._in_hand: str | None = None
        self._progress = Progress()
        self._consumer: AIOKafkaConsumer

    async def __aenter__(self) -> Self:
        """Raises: BrokerUnavailable, TopicMissing."""
        await require_topics(self._kafka, self._topic, **security_of(self._options))
        self._in_hand, self._progress = None, Progress()
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
        """The next event; the one before it is processed now."""
        while True:
            await self._settle()
            record = await self._consumer.getone()
            event = self._event(record)
            self._progress.passed(record)
            if event is not None:
                self._in_hand = header(record.headers, CE_ID) or event.event_id
                if self._in_hand not in self._processed:
                    return event

    async def _settle(self) -> None:
        if self._in_hand is not None:
            self._processed.add(self._in_hand)
            self._in_hand = None
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
    """The event of a record, None when it is of another type. Raises: InvalidRecord."""
    if header(record.headers, CE_TYPE) not in (SUMMARY_CREATED, None):
        return None
    if record.value is None:
        raise InvalidRecord("empty_value", "the record has no value")
    event = validate(SummaryCreated, record.value)
    check_key(record.key, event.conversation_id)
    return event


class RecentIds:
    """The last `limit` ids, in order of their last use."""

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
    """Offsets that may be committed; forgotten with the partition.

    A partition may be another member's for a while and come back: what we knew of it would set its offset back.
    """

    def __init__(self) -> None:
        self._offsets: dict[TopicPartition, int] = {}

    def passed(self, record: ConsumerRecord) -> None:
        self._offsets[TopicPartition(record.topic, record.partition)] = record.offset + 1

    async def commit(self, consumer: AIOKafkaConsumer) -> None:
        """A commit that a rebalance has overtaken is dropped: whoever has the partition now reads the event again."""
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
