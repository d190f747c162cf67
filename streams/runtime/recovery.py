"""From the changelogs to the local state, and to the source offset it corresponds to."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition

from afterword.streams.runtime.bookmark import KEY, Bookmark, decode, row_key
from afterword.streams.runtime.clients import Clients
from afterword.streams.runtime.database import Change, Database, Position
from afterword.streams.runtime.errors import ChangelogLost, ChangelogMismatch

POLL_MS = 200
FETCH_BYTES = 1 << 20
MOST_RECORDS = 5000
"""At once: decoded they take some 500 bytes each, in each of the partitions that recover together; and while they are
applied nothing else of the worker moves."""


class OtherChangelog(Exception):
    """The local state was made from another changelog than the one on the broker."""


@dataclass(frozen=True, slots=True)
class Recovered:
    records: int
    seconds: float
    rebuilt: bool
    """The local state was of no use and was made anew."""


async def recover(
    database: Database,
    changelogs: Mapping[str, TopicPartition],
    clients: Clients,
    topic: str,
    stale_seconds: float,
    replayed: Callable[[int], None] = lambda _: None,
) -> Recovered:
    """Replays what the local state has not seen; whoever calls has fenced all other writers.

    State older than `stale_seconds` is not used: compaction may have forgotten deletions that it has not seen.
    `replayed` is told the number of records so far.

    Raises: ChangelogMismatch, ChangelogLost, StoreFailed, KafkaError, TimeoutError.
    """
    began = time.monotonic()
    await _check_partitions(clients, [changelog.topic for changelog in changelogs.values()], topic)
    consumer = clients.consumer(
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    await consumer.start()
    try:
        consumer.assign(list(changelogs.values()))
        try:
            if database.age_seconds > stale_seconds:
                raise OtherChangelog
            records, rebuilt = await _catch_up(consumer, database, changelogs, stale_seconds, replayed), False
        except OtherChangelog:
            database.wipe()
            records, rebuilt = await _catch_up(consumer, database, changelogs, stale_seconds, replayed), True
    finally:
        await consumer.stop()
    return Recovered(records, time.monotonic() - began, rebuilt)


async def _check_partitions(clients: Clients, changelogs: Sequence[str], topic: str) -> None:
    """Row and record must be in partitions of the same number, or state would be lost silently.

    A consumer is not asked: its metadata does not know topics before it reads them.
    """
    admin = clients.admin()
    await admin.start()
    try:
        described = await admin.describe_topics([topic, *changelogs])
    finally:
        await admin.close()
    counts = {found["topic"]: len(found["partitions"]) for found in described}
    for changelog in changelogs:
        if counts[changelog] != counts[topic]:
            raise ChangelogMismatch(changelog=changelog, found=counts[changelog], topic=topic, expected=counts[topic])


async def _catch_up(
    consumer: Any,
    database: Database,
    changelogs: Mapping[str, TopicPartition],
    stale_seconds: float,
    replayed: Callable[[int], None],
) -> int:
    """As `_replay`; the state keeps its age until all is replayed, and must not be too old even then.

    A process may be suspended in the middle for a day, or die there again and again.
    """
    began, known_ms = database.clock(), database.position.written_ms
    records = await _replay(consumer, database, changelogs, known_ms or began, replayed)
    if database.clock() - (known_ms or began) > stale_seconds * 1000:
        raise OtherChangelog if known_ms else TimeoutError("compaction may have overtaken the replay")
    database.write({}, database.position, as_of_ms=began)
    return records


async def _replay(
    consumer: Any,
    database: Database,
    changelogs: Mapping[str, TopicPartition],
    as_of_ms: int,
    replayed: Callable[[int], None],
) -> int:
    tables = {changelog: table for table, changelog in changelogs.items()}
    first = await consumer.beginning_offsets(list(tables))
    end = await consumer.end_offsets(list(tables))
    for changelog, table in tables.items():
        bookmark = database.position.bookmarks.get(table, -1)
        if bookmark >= end[changelog]:
            raise OtherChangelog
        consumer.seek(changelog, max(bookmark, first[changelog]))
    known, marks, records = set(database.position.bookmarks), dict[str, Bookmark](), 0
    while any([await consumer.position(changelog) < end[changelog] for changelog in tables]):
        fetched = await consumer.getmany(timeout_ms=POLL_MS, max_records=MOST_RECORDS)
        for changelog, found in fetched.items():
            table = tables[changelog]
            marks.update(_apply(database, table, found, as_of_ms))
            records += len(found)
            replayed(records)
    if known - set(marks):  # the bookmark that we had is gone, and compaction always leaves one
        raise OtherChangelog
    _check_bookmarks(marks, changelogs)
    return records


def _check_bookmarks(marks: Mapping[str, Bookmark], changelogs: Mapping[str, TopicPartition]) -> None:
    """The last transaction has a bookmark in the changelog of each table that there was. Raises: ChangelogLost."""
    if not marks:
        return
    last = max(marks.values(), key=lambda mark: mark.source)
    for table in set(last.tables) & set(changelogs):
        if table not in marks or marks[table].source != last.source:
            changelog = changelogs[table].topic
            raise ChangelogLost(changelog=changelog, source=last.source)


def _apply(database: Database, table: str, records: Iterable[Any], as_of_ms: int) -> dict[str, Bookmark]:
    """Writes the rows; the table's last bookmark, if there was one among them."""
    rows: list[Change] = []
    position, marks = database.position, dict[str, Bookmark]()
    for record in records:
        if record.key == KEY:
            marks[table] = decode(record.value)
            position = _advance(position, table, record.offset, marks[table])
        else:
            rows.append((row_key(record.key), record.value))
    database.write({table: rows}, position, as_of_ms=as_of_ms)
    return marks


def _advance(position: Position, table: str, offset: int, bookmark: Bookmark) -> Position:
    if position.lineage and bookmark.lineage != position.lineage:
        raise OtherChangelog
    return Position(
        source=max(position.source, bookmark.source),
        lineage=bookmark.lineage,
        bookmarks={**position.bookmarks, table: offset},
    )
