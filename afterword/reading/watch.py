"""A live view of summaries and their deletions, without a consumer group and without commits."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog
from aiokafka import AIOKafkaConsumer

from afterword.consumers.subscriber import REPEATS_REMEMBERED, RecentIds, decode_revision
from afterword.schemas import InvalidRecord, SummaryCreated, SummaryDeleted
from afterword.streams.kafka.clients import running_consumer
from afterword.streams.settings import Settings

log = structlog.get_logger(__name__)


async def watch(settings: Settings, from_beginning: bool) -> AsyncGenerator[SummaryCreated | SummaryDeleted, None]:
    """Yield each event once, from now on or from the beginning.

    Raises: BrokerUnavailable, TopicMissing.
    """
    kafka = settings.kafka
    async with running_consumer(
        kafka, kafka.summaries_topic, kafka.deletions_topic, auto_offset_reset="earliest"
    ) as consumer:
        if not from_beginning:
            await seek_to_now(consumer)
        async with aclosing(events(consumer)) as found:
            async for event in found:
                yield event


async def seek_to_now(consumer: AIOKafkaConsumer) -> None:
    """Seek to the end of all assigned partitions.

    `seek_to_end` is not used: if aiokafka is asking for the beginnings at that moment, it takes them for the ends.
    """
    for partition, offset in (await consumer.end_offsets(consumer.assignment())).items():
        consumer.seek(partition, offset)


async def events(consumer: AIOKafkaConsumer) -> AsyncGenerator[SummaryCreated | SummaryDeleted, None]:
    """Yield each event once, from the consumer's position."""
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
