"""Checks that a source topic is still the one that the state was made from, and which of its records are left.

A topic that was deleted and recreated has the same name but a different id. If a topic got more partitions, keys have
moved away from their state. So each bookmark records the topic's id, and each commit's metadata its partition count.
"""

import asyncio
import re
from collections.abc import Collection, Iterable
from itertools import count
from typing import Any

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError, UnknownTopicOrPartitionError

from faust_eos.database import DatabasePosition
from faust_eos.errors import SourceGrown, SourceRecreated, SourceReplaced
from faust_eos.metrics import EngineMetrics
from faust_eos.protocol import Clients, started

log = structlog.get_logger()

METADATA = re.compile(r"partitions=([1-9]\d{0,8})")


def encode_partitions(partitions: int) -> str:
    """Return the metadata of a commit."""
    return f"partitions={partitions}"


def least_partitions(metadata: Iterable[str]) -> int | None:
    """Return the smallest partition count named in the metadata of commits; None if there is none."""
    return min((int(found[1]) for one in metadata if (found := METADATA.fullmatch(one))), default=None)


def check_source(topic: str, known: DatabasePosition, found: str) -> None:
    """Refuse a source topic whose id differs from that in the last bookmark. Raises: SourceRecreated."""
    if known.source >= 0 and known.source_id and found and known.source_id != found:
        raise SourceRecreated(topic=topic, expected=known.source_id, found=found)


async def check_partitions(clients: Clients, kafka: Any, group: str, topic: str, *, may_grow: bool = False) -> int:
    """Return the topic's partition count. `kafka` is the group's aiokafka consumer.

    Raises: SourceGrown if the group has committed while there were fewer partitions; KafkaError, OSError, TimeoutError.
    """
    async with started(clients.admin()) as admin:
        described = await admin.describe_topics([topic])
    partitions = len(described[0]["partitions"])
    if not partitions:
        raise UnknownTopicOrPartitionError(topic)
    if may_grow:
        return partitions
    before = least_partitions(await clients.metadata(kafka, group, topic, partitions))
    if before is not None and before < partitions:
        raise SourceGrown(topic=topic, found=partitions, expected=before)
    return partitions


async def watch_sources(app: Any) -> None:
    """Check the sources every `source_look_seconds`; stop the worker when one was recreated or got more partitions.

    In either case aiokafka itself carries on without an error.
    """
    consumer = app.consumer
    while True:
        await asyncio.sleep(app.engine.source_look_seconds)
        opened = [(s.topic, p.session.database) for s, p in consumer.partitions.items() if p.session is not None]
        try:
            for topic in sorted({topic for topic, _ in opened}):
                clients = consumer.clients()
                async with started(clients.admin()) as admin:
                    found = (await admin.topic_ids([topic])).get(topic, "")
                for database in [database for name, database in opened if name == topic]:
                    check_source(topic, database.position, found)
                may_grow = app.engine.sources_may_grow
                await check_partitions(clients, consumer.kafka, app.conf.id, topic, may_grow=may_grow)
        except (SourceRecreated, SourceGrown) as error:
            consumer.stop_worker(error)
            return
        except (KafkaError, OSError, TimeoutError, AssertionError):  # no broker answers or is known yet
            continue


def check_order(source: TopicPartition, found: int, expected: int) -> None:
    """Refuse records from before the expected offset; aiokafka silently starts over if the topic was recreated.

    Raises: OffsetOutOfRangeError.
    """
    if found < expected:
        raise OffsetOutOfRangeError(f"{source.topic}-{source.partition} went back from {expected} to {found}")


async def readable(
    kafka: Any,
    source: TopicPartition,
    position: int,
    metrics: EngineMetrics,
    counted: int = 0,
    finished: Collection[int] = frozenset(),
) -> int:
    """Return `position`, or the log start if that is later; the offsets between them expired unread.

    Only offsets below the log start are lost; above it, compaction, aborted records and transaction markers leave
    holes. `kafka` is an aiokafka consumer. `position` is −1 for a group that has none, which then begins at the log
    start. Losses below `counted` were already reported or concern finished records. `finished` are the finished offsets
    beyond `counted`.

    Raises: SourceReplaced if the source ends before `position`; KafkaError, TimeoutError.
    """
    first = int((await kafka.beginning_offsets([source]))[source])
    end = int((await kafka.end_offsets([source]))[source])
    if position > end:
        raise SourceReplaced(where=f"{source.topic}-{source.partition}", end=end, source=position)
    unread = max(position, counted)
    lost = first - unread - sum(unread <= offset < first for offset in finished)
    if position >= 0 and lost > 0:
        first_lost = next(offset for offset in count(unread) if offset not in finished)
        report_expired(source, metrics, first_lost, first, lost)
    return max(position, first)


def report_expired(source: TopicPartition, metrics: EngineMetrics, first: int, next_offset: int, lost: int) -> None:
    """Count and log records that were deleted before they were read.

    `first` is the offset of the first lost record and `lost` their number; `next_offset` is that of the first one left.
    """
    metrics.expired(lost)
    log.error(
        "records_expired",
        topic=source.topic,
        partition=source.partition,
        stage="consume",
        error_type="expired",
        first_lost=first,
        next_offset=next_offset,
        count=lost,
    )
