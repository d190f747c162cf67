"""Changelogs: the bookmark that ends each transaction, and the replay that recovers local state from them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import orjson
import structlog
from aiokafka import TopicPartition
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code

from faust_eos.database import Database, RowChange
from faust_eos.errors import (
    ChangelogDeletes,
    ChangelogLost,
    ChangelogMismatch,
    ChangelogReplaced,
    ChangelogTruncated,
)
from faust_eos.kafka import Clients, check_source, started

log = structlog.get_logger()

BOOKMARK_KEY = b"\0eos.bookmark"
"""A key like any other, so that compaction keeps the last bookmark. `changelog_key` keeps row keys apart from it."""
POLICY, RETENTION = "cleanup.policy", "delete.retention.ms"
CONFIGS: dict[str, Any] = {POLICY: None, RETENTION: None}
POLL_MS = 200
FETCH_WAIT_MS = 50
FETCH_BYTES = 1 << 20
MAX_RECORDS = 5000
"""Maximum number of records in one poll. A decoded record takes some 500 bytes, in each of the partitions that recover
at the same time, and the event loop is blocked while the records are applied."""


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Value of the last record that a transaction writes to a changelog: how far into the source its rows reach.

    It is linked to the previous bookmark in the same log. Offsets within one log only grow, even under compaction. If a
    log is deleted and recreated while a worker writes to it, they start over. Only the first bookmark in the new log
    can reveal that, so the worker stops right after writing it.
    """

    source: int
    """Next offset of the source partition."""
    lineage: str
    """Random id that the first transaction gave this changelog."""
    tables: list[str]
    """Tables in whose changelogs this transaction left a bookmark. If one of them has none, its rows are lost."""
    source_id: str = ""
    """Id of the source topic; empty if it is not known."""
    previous: int = -1
    """Offset of the previous bookmark; −1 if there is none."""
    records: int = 1
    """Number of records that the transaction wrote to this log, including the bookmark."""

    def check(self, where: TopicPartition, offset: int) -> None:
        """Check the offset at which the bookmark was stored. Raises: ChangelogReplaced."""
        first = offset - self.records + 1
        if first <= self.previous:
            name = f"{where.topic}-{where.partition}"
            raise ChangelogReplaced(changelog=name, previous=self.previous, found=first)

    def encode(self) -> bytes:
        return orjson.dumps(self)


def decode_bookmark(value: bytes) -> Bookmark:
    return Bookmark(**orjson.loads(value))


def changelog_key(row_key: bytes) -> bytes:
    """Return a row's key in the changelog: the row key, with one byte appended if it begins with the bookmark's key."""
    return row_key + b"\0" if row_key.startswith(BOOKMARK_KEY) else row_key


def row_key(changelog_key: bytes) -> bytes:
    """Invert `changelog_key`."""
    return changelog_key[:-1] if changelog_key.startswith(BOOKMARK_KEY) else changelog_key


def new_lineage() -> str:
    return uuid4().hex


def changelogs_of(tables: Mapping[str, Any], partition: int) -> dict[str, TopicPartition]:
    """Return the changelog partition of each table by the table's name. `tables` are Faust's."""
    return {name: TopicPartition(table.changelog_topic.get_topic_name(), partition) for name, table in tables.items()}


async def recover(
    database: Database,
    changelogs: Mapping[str, TopicPartition],
    clients: Clients,
    topic: str,
    stale_seconds: float,
    replayed: Callable[[int], None],
) -> tuple[int, bool]:
    """Replay the changelog records that the local state lacks, up to the present end, or rebuild the state.

    The caller has fenced all earlier writers. `changelogs` has a partition for each table name. `topic` is the source.
    State older than `stale_seconds` is rebuilt, because compaction may have removed tombstones that it has not seen.
    `replayed` is called with the number of records so far.

    Returns the number of records, and whether the local state was discarded and rebuilt.
    Raises: ChangelogMismatch, ChangelogDeletes, ChangelogTruncated, ChangelogReplaced, ChangelogLost, SourceRecreated,
    StoreFailed, KafkaError, TimeoutError.
    """
    names = [changelog.topic for changelog in changelogs.values()]
    source_id = await check_changelogs(clients, names, topic, stale_seconds)
    consumer = clients.consumer(
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="none",  # records that are deleted during the replay must not be skipped silently
        fetch_max_wait_ms=FETCH_WAIT_MS,
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    await consumer.start()
    try:
        consumer.assign(list(changelogs.values()))
        recovered = await Replay(database, changelogs, stale_seconds, replayed, consumer).run()
    finally:
        await consumer.stop()
    known = database.position
    check_source(topic, known, source_id)
    if source_id not in ("", known.source_id):
        database.write({}, replace(known, source_id=source_id), as_of_ms=known.written_ms)
    return recovered


class OtherChangelog(Exception):
    """The local state was made from a different changelog than the one on the broker, or is too old."""


@dataclass
class Replay:
    """The replay of one source partition's changelogs into its database; for the fields see `recover`."""

    database: Database
    changelogs: Mapping[str, TopicPartition]
    stale_seconds: float
    replayed: Callable[[int], None]
    consumer: Any

    async def run(self) -> tuple[int, bool]:
        try:
            if self.database.age_seconds > self.stale_seconds:
                raise OtherChangelog
            return await self._catch_up(), False
        except OtherChangelog:
            self.database.wipe()
            return await self._catch_up(), True

    async def _catch_up(self) -> int:
        """Replay, and check afterwards that the state did not become too old in the meantime.

        The state keeps its age until everything is replayed, because a process may be suspended halfway for a day, or
        crash there repeatedly.
        """
        database = self.database
        began, known_ms = database.clock(), database.position.written_ms
        records = await self._replay(known_ms or began)
        if database.clock() - (known_ms or began) > self.stale_seconds * 1000:
            raise OtherChangelog if known_ms else TimeoutError("compaction may have overtaken the replay")
        database.write({}, database.position, as_of_ms=began)
        return records

    async def _replay(self, as_of_ms: int) -> int:
        tables = {changelog: table for table, changelog in self.changelogs.items()}
        consumer, known = self.consumer, self.database.position.bookmarks
        first = await consumer.beginning_offsets(list(tables))
        end = await consumer.end_offsets(list(tables))
        for changelog, table in tables.items():
            bookmark = known.get(table, -1)
            if bookmark >= end[changelog]:
                raise OtherChangelog
            # Compaction alone leaves the log start at 0. The state is whole if all deleted records precede its bookmark
            if first[changelog] > max(bookmark, 0):
                name = f"{changelog.topic}-{changelog.partition}"
                raise ChangelogTruncated(changelog=name, first=first[changelog])
            consumer.seek(changelog, max(bookmark, first[changelog]))
        marks, records = dict[str, Bookmark](), 0
        while any([await consumer.position(changelog) < end[changelog] for changelog in tables]):
            fetched = await consumer.getmany(timeout_ms=POLL_MS, max_records=MAX_RECORDS)
            if not fetched and any(now < end[each] for each, now in (await consumer.end_offsets(list(tables))).items()):
                raise TimeoutError("a changelog was recreated during the replay")
            for changelog, records_of in fetched.items():
                marks.update(_apply(self.database, tables[changelog], records_of, as_of_ms))
                records += len(records_of)
                self.replayed(records)
        if set(known) - set(marks):  # our last bookmark is gone, although compaction always keeps one
            raise OtherChangelog
        _check_bookmarks(marks, self.changelogs)
        return records


def _apply(database: Database, table: str, records: Iterable[Any], as_of_ms: int) -> dict[str, Bookmark]:
    """Write the rows; return the table's last bookmark if there is one among the records. Raises: ChangelogReplaced."""
    rows: list[RowChange] = []
    position, marks = database.position, dict[str, Bookmark]()
    for record in records:
        if record.key == BOOKMARK_KEY:
            mark = marks[table] = decode_bookmark(record.value)
            mark.check(TopicPartition(record.topic, record.partition), record.offset)
            if position.lineage and mark.lineage != position.lineage:
                raise OtherChangelog
            position = replace(
                position,
                source=max(position.source, mark.source),
                lineage=mark.lineage,
                bookmarks={**position.bookmarks, table: record.offset},
                source_id=mark.source_id,
            )
        else:
            rows.append((row_key(record.key), record.value))
    database.write({table: rows}, position, as_of_ms=as_of_ms)
    return marks


def _check_bookmarks(marks: Mapping[str, Bookmark], changelogs: Mapping[str, TopicPartition]) -> None:
    """Require the last transaction's bookmark in the changelog of each table that it names. Raises: ChangelogLost."""
    if not marks:
        return
    last = max(marks.values(), key=lambda mark: mark.source)
    for table in set(last.tables) & set(changelogs):
        if table not in marks or marks[table].source != last.source:
            raise ChangelogLost(changelog=changelogs[table].topic, source=last.source)


async def check_changelogs(clients: Clients, changelogs: Sequence[str], topic: str, stale_seconds: float) -> str:
    """Check the partition counts and the configuration of a source topic's changelogs.

    Returns the id of the source topic, which is empty if the broker has no topic ids. This asks the admin client,
    because a consumer's metadata lacks topics that the consumer has not read.

    Raises: ChangelogMismatch, ChangelogDeletes, KafkaError.
    """
    resources = [ConfigResource(ConfigResourceType.TOPIC, changelog, CONFIGS) for changelog in changelogs]
    async with started(clients.admin()) as admin:
        described = await admin.describe_topics([topic, *changelogs])
        responses = await admin.describe_configs(resources)
        ids: dict[str, str] = await admin.topic_ids([topic])
    counts = {each["topic"]: len(each["partitions"]) for each in described}
    for changelog in changelogs:  # or a row may be in another partition than its records, and is lost silently
        if counts[changelog] != counts[topic]:
            raise ChangelogMismatch(changelog=changelog, found=counts[changelog], topic=topic, expected=counts[topic])
    for code, _, _, changelog, entries in [each for response in responses for each in response.resources]:
        if code == 0:
            check_configs(changelog, {entry[0]: entry[1] for entry in entries}, stale_seconds)
        else:  # this Kafka user may not be permitted to read the topic's settings
            name = for_code(code).__name__
            log.warning("changelog_not_checked", topic=changelog, stage="recover", error_type=name)
    return ids.get(topic, "")


def check_configs(changelog: str, configs: Mapping[str, str | None], stale_seconds: float) -> None:
    """Refuse a changelog that deletes records by age or size, and warn if it drops tombstones too early.

    Raises: ChangelogDeletes.
    """
    policy, retention_ms = configs.get(POLICY) or "", int(configs.get(RETENTION) or 0)
    if policy != "compact":
        raise ChangelogDeletes(changelog=changelog, policy=policy)
    if retention_ms <= stale_seconds * 1000:
        log.warning(
            "changelog_retention_too_short",
            topic=changelog,
            stage="recover",
            error_type="changelog_retention_too_short",
            delete_retention_ms=retention_ms,
            should_exceed_ms=int(stale_seconds * 1000),
        )
