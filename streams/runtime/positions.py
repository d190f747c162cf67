"""Start positions of a reader of a source: losses are counted and logged, and another topic is refused."""

from collections.abc import Collection
from itertools import count
from typing import Any

import structlog
from aiokafka import TopicPartition

from afterword.streams.runtime.errors import SourceReplaced
from afterword.streams.runtime.metrics import EngineMetrics

log = structlog.get_logger()


async def readable(
    kafka: Any,
    source: TopicPartition,
    position: int,
    metrics: EngineMetrics,
    counted: int = 0,
    finished: Collection[int] = frozenset(),
) -> int:
    """Return `position`, or the log start if that is later: the offsets between them expired unread.

    Only offsets below the log start are lost: compaction, aborted records and transaction markers leave holes above it.
    `kafka`: an aiokafka consumer. `position`: −1 for a group that has none; it begins at the log start. `counted`:
    offset up to which losses were reported before, or everything is finished. `finished`: offsets beyond it that are.

    Raises: SourceReplaced when the source ends before `position`; KafkaError, TimeoutError.
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

    `first`: offset of the first; `lost`: their number; `next_offset`: of the first that is left.
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
