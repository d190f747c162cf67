"""Local state of partitions that have moved to other workers: removed when another owner has gone on without it.

It is a cache of the changelogs, but it stays on the disk of every worker that ever had the partition.
"""

import asyncio
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from afterword.streams.runtime.database import read_position
from afterword.streams.runtime.errors import StoreFailed

log = structlog.get_logger()

NAME = re.compile(r"(.+)-(\d+)")
REMOVED = ".removed"
"""Ending of a directory's name whose removal has begun."""


@dataclass(frozen=True, slots=True)
class Kept:
    """State of a partition on this worker's disk."""

    path: Path
    source: TopicPartition
    offset: int
    """Next offset of the source; −1 before the first transaction."""
    written_ms: int
    """Time at which it was last up to date; 0 if it never was."""


def superseded(
    kept: Iterable[Kept],
    assigned: Collection[TopicPartition],
    committed: Mapping[TopicPartition, int],
    now_ms: int,
    grace_ms: int,
) -> list[Kept]:
    """Select the state that may go.

    This worker does not have its partition; the group has committed beyond it, as another owner does; and it was not in
    use during the grace time, so that a partition that comes back soon need not be rebuilt.
    """
    return [
        state
        for state in kept
        if state.source not in assigned
        and committed.get(state.source, -1) > state.offset
        and now_ms - state.written_ms > grace_ms
    ]


async def remove_regularly(app: Any) -> None:
    """Look every `moved_look_seconds`, while the worker is in its group."""
    while True:
        await asyncio.sleep(app.engine.moved_look_seconds)
        try:
            await remove_moved(app)
        except (KafkaError, TimeoutError, OSError) as error:
            log.warning("moved_state_kept", stage="state", error_type=type(error).__name__)


async def remove_moved(app: Any) -> None:
    """Remove what is superseded. Raises: KafkaError, TimeoutError, OSError."""
    consumer, directory = app.consumer, app.conf.tabledir
    await asyncio.to_thread(_clear, directory)  # what an earlier look has left
    sources = {topic for table in app.tables.values() for topic in consumer.kafka.subscription() if table.takes(topic)}
    kept = await asyncio.to_thread(_kept, directory, sources, consumer.kafka.assignment())
    committed = {state.source: int(await consumer.kafka.committed(state.source) or -1) for state in kept}
    grace_seconds = max(app.engine.moved_grace_seconds, app.conf.broker_session_timeout)
    # From here to the renaming nothing is awaited: no partition can be assigned, and opened, in between
    if consumer.joined:
        assigned = {*consumer.kafka.assignment(), *consumer.partitions}
        for state in superseded(kept, assigned, committed, app.engine.clock(), int(grace_seconds * 1000)):
            state.path.rename(state.path.with_name(state.path.name + REMOVED))
            where = {"topic": state.source.topic, "partition": state.source.partition}
            log.info("moved_state_removed", **where, offset=state.offset, committed=committed[state.source])
    await asyncio.to_thread(_clear, directory)


def _clear(directory: Path) -> None:
    """Delete the directories whose removal has begun."""
    for leftover in directory.glob(f"*{REMOVED}"):
        shutil.rmtree(leftover, ignore_errors=True)


def _kept(directory: Path, topics: Collection[str], assigned: Collection[TopicPartition]) -> list[Kept]:
    """Return the state of partitions of these topics that are not assigned, as far as it can be read."""
    kept: list[Kept] = []
    for path in directory.iterdir() if directory.exists() else ():
        name = NAME.fullmatch(path.name)
        source = TopicPartition(name[1], int(name[2])) if name else None
        if source is not None and source.topic in topics and source not in assigned and path.is_dir():
            try:
                position = read_position(path)
            except StoreFailed as error:  # damaged, or its making was cut short: that of others may still go
                log.warning("moved_state_unreadable", stage="state", error_type=error.error_type, path=str(path))
                continue
            kept.append(Kept(path, source, position.source, position.written_ms))
    return kept
