"""A snapshot makes recovery faster, never wrong, and stops nobody."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from afterword.streams.runtime.changelog import ReplayPace
from afterword.streams.runtime.database import Database, DatabasePosition
from afterword.streams.runtime.metrics import EngineMetrics
from afterword.streams.runtime.options import Options
from afterword.streams.runtime.snapshot_format import SnapshotEncoder
from afterword.streams.runtime.snapshot_stores import open_snapshot_store
from afterword.streams.runtime.snapshots import (
    FILLING,
    FILLING_MS,
    RETRY_SECONDS,
    Schedule,
    StateSnapshot,
    take_regularly,
)
from tests.bucket import BUCKET, bucket_server
from tests.doubles.snapshots import MemorySnapshots

TABLES = ("rows", "row")
"""One name is the beginning of another."""
KEY = "app/messages/0"
POSITION = DatabasePosition(9, "lineage", {"rows": 4, "row": 5}, source_id="id")
HOUR_MS = 3600 * 1000
NOW_MS = 1_800_000_000_000
A, B = TopicPartition("messages", 0), TopicPartition("messages", 1)


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


class World:
    """A store, a clock, and databases in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = Clock()
        self.store = MemorySnapshots()
        self.registry = CollectorRegistry()
        self.snapshot = StateSnapshot(
            self.store,
            KEY,
            12 * 3600.0,
            EngineMetrics(self.registry, "unit"),
            silent_seconds=0.05,
            part_bytes=20,
            pace=ReplayPace(),
        )
        self.open_ones: list[Database] = []

    def database(self, name: str) -> Database:
        deadlines = {"rows": int, "row": None}
        found = Database(self.directory / name, deadlines, clock=self.clock)
        self.open_ones.append(found)
        return found

    async def fill(self, database: Database) -> int:
        return await self.snapshot.fill(database, TABLES, lambda _: None, ReplayPace())

    def counted(self, name: str, result: str) -> float:
        return self.registry.get_sample_value(f"engine_{name}_total", {"role": "unit", "result": result}) or 0

    def close(self) -> None:
        for one in self.open_ones:
            one.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def rows_of(database: Database) -> dict[tuple[str, bytes], bytes]:
    return {(table, key): value for table in TABLES for key, value in database.rows_after(table, None, 1 << 30)}


def filled(world: World, name: str = "owner") -> Database:
    database = world.database(name)
    rows = [(b"%03d" % number, b"%d" % (NOW_MS + number)) for number in range(100)]
    database.write({"rows": rows, "row": [(b"", b"x"), (b"\0", b"y")]}, POSITION)
    return database


async def test_a_lost_disk_gets_rows_deadlines_and_position_back(world: World) -> None:
    owner = filled(world)
    assert await world.snapshot.take(owner, TABLES)
    assert world.counted("snapshots", "written") == 1
    world.clock.now_ms += HOUR_MS
    fresh, progress = world.database("fresh"), list[int]()
    with capture_logs() as logs:
        assert await world.snapshot.fill(fresh, TABLES, progress.append, ReplayPace()) == 102
    assert rows_of(fresh) == rows_of(owner)
    assert fresh.position == owner.position
    assert fresh.due(NOW_MS + 50, 1000) == owner.due(NOW_MS + 50, 1000)
    assert fresh.scheduled == owner.scheduled
    assert progress == sorted(progress)
    assert progress[-1] == 102
    assert world.counted("snapshot_restores", "restored") == 1
    [said] = logs
    assert (said["event"], said["rows"], said["age_seconds"]) == ("snapshot_restored", 102, 3600)


keys = st.sampled_from([b"", b"\0", b"a", b"a\0"])
"""Few, so that they change when they have been copied, and before."""
changes = st.tuples(st.sampled_from(TABLES), keys, st.none() | st.integers(0, 99))
transactions = st.lists(st.lists(changes, min_size=1, max_size=3), max_size=2)


class Changing:
    """An owner whose rows change, and the changelog of it."""

    def __init__(self, owner: Database) -> None:
        self.owner = owner
        self.log: list[list[Any]] = []
        self.commit([])

    def commit(self, changed: list[Any]) -> None:
        self.log.append(changed)
        at = len(self.log)
        self.owner.write(by_table(changed), DatabasePosition(at, "lineage", dict.fromkeys(TABLES, at)))

    def since(self, position: DatabasePosition) -> list[Any]:
        """Return the changes behind the bookmark, as compaction leaves them: the last of each key."""
        later = [one for changed in self.log[position.bookmarks["rows"] :] for one in changed]
        return [(table, key, value) for (table, key), value in {(t, k): v for t, k, v in later}.items()]


def by_table(changed: list[Any]) -> dict[str, list[Any]]:
    return {
        name: [(key, None if value is None else b"%d" % value) for table, key, value in changed if table == name]
        for name in TABLES
    }


@given(transactions, st.lists(transactions, max_size=12))
def test_a_copy_that_is_made_while_rows_change_and_the_changes_since_are_the_rows(
    before: list[list[Any]], meanwhile: list[list[list[Any]]]
) -> None:
    """Before each piece there are some transactions, and each row is a piece."""
    directory = Path(tempfile.mkdtemp())
    world = World(directory)
    world.snapshot.part_bytes = 1
    changing, left = Changing(world.database("owner")), iter(meanwhile)

    async def change() -> None:
        for changed in next(left, []):
            changing.commit(changed)

    async def run() -> None:
        world.snapshot.store = MemorySnapshots(each_piece=change, objects=world.store.objects)
        await world.snapshot.take(changing.owner, TABLES)
        await change()
        fresh, world.snapshot.store = world.database("fresh"), world.store
        await world.fill(fresh)
        fresh.write(by_table(changing.since(fresh.position)), fresh.position)
        assert rows_of(fresh) == rows_of(changing.owner)

    for changed in before:
        changing.commit(changed)
    try:
        asyncio.run(run())
    finally:
        world.close()
        shutil.rmtree(directory)


async def test_usable_state_is_left_alone(world: World) -> None:
    owner = filled(world)
    await world.snapshot.take(owner, TABLES)
    owner.write({"row": [(b"new", b"")]}, replace(POSITION, source=10))
    assert await world.fill(owner) == 0
    assert owner.get("row", b"new") == b""


@pytest.mark.parametrize("hours", [13, -2])
async def test_state_that_is_too_old_is_replaced_by_a_snapshot_that_is_not(world: World, hours: int) -> None:
    """So is state of which that cannot be known, as the clock was ahead when it was written."""
    old = world.database("old")
    old.write({"row": [(b"gone since", b"")]}, replace(POSITION, source=1))
    world.clock.now_ms += hours * HOUR_MS
    owner = filled(world)
    await world.snapshot.take(owner, TABLES)
    await world.fill(old)
    assert rows_of(old) == rows_of(owner)


async def test_a_snapshot_is_as_old_as_its_last_commit_whenever_it_was_copied(world: World) -> None:
    """A worker that was frozen for a day copies what it has before it learns that it owns nothing."""
    owner = filled(world)
    world.clock.now_ms += 13 * HOUR_MS
    await world.snapshot.take(owner, TABLES)
    await ignored(world, "too_old")


async def ignored(world: World, reason: str) -> None:
    """Check that the snapshot is not used, that it is said once, and that nothing of it is left."""
    fresh = world.database("ignoring")
    with capture_logs() as logs:
        await world.fill(fresh)
    [warning] = logs
    assert (warning["event"], warning["log_level"]) == ("snapshot_ignored", "warning")
    assert reason in warning["error_type"]
    assert world.counted("snapshot_restores", "ignored") == 1
    assert rows_of(fresh) == {}
    assert fresh.position == DatabasePosition()


async def test_one_that_was_made_by_a_clock_far_ahead_is_ignored(world: World) -> None:
    owner = filled(world)
    await world.snapshot.take(owner, TABLES)
    world.clock.now_ms -= 2 * HOUR_MS
    await ignored(world, "from_the_future")


async def test_one_of_other_tables_is_ignored(world: World) -> None:
    owner = filled(world)
    await world.snapshot.take(owner, TABLES)
    fresh = world.database("fresh")
    await world.snapshot.fill(fresh, ["rows"], lambda _: None, ReplayPace())
    assert (world.counted("snapshot_restores", "ignored"), fresh.position) == (1, DatabasePosition())


async def test_one_that_is_damaged_behind_its_first_rows_is_ignored_and_they_are_gone(world: World) -> None:
    owner = filled(world)
    await world.snapshot.take(owner, TABLES)
    world.store.objects[KEY] = world.store.objects[KEY][:-1]
    await ignored(world, "damaged")


async def test_one_whose_rows_are_of_a_table_that_its_head_has_not_is_ignored(world: World) -> None:
    encoder = SnapshotEncoder()
    position = replace(POSITION, written_ms=NOW_MS)
    world.store.objects[KEY] = encoder.head(position) + encoder.rows("other", [(b"", b"")]) + encoder.end()
    await ignored(world, "other_tables")


async def test_a_store_that_says_nothing_is_not_waited_for(world: World) -> None:
    world.store.is_silent = True
    await ignored(world, "TimeoutError")


async def test_a_store_that_falls_silent_halfway_leaves_nothing_behind(world: World) -> None:
    await world.snapshot.take(filled(world), TABLES)
    pieces = iter(range(5))

    async def answers() -> None:
        if next(pieces, None) is None:
            await asyncio.Event().wait()

    store = MemorySnapshots(piece_bytes=200, each_piece=answers)
    store.objects.update(world.store.objects)
    world.snapshot.store = store
    await ignored(world, "TimeoutError")


async def test_an_error_of_the_store_is_told_by_its_name_alone(world: World) -> None:
    world.store.error = ConnectionResetError("the secret")
    await ignored(world, "ConnectionResetError")
    with capture_logs() as logs:
        assert not await world.snapshot.take(filled(world), TABLES)
    assert world.counted("snapshots", "failed") == 1
    assert [one["event"] for one in logs] == ["snapshot_failed"]
    assert "secret" not in str(logs)


async def test_a_bucket_that_refuses_costs_a_warning_without_the_key(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bucket_server() as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        bucket.refuses = True
        silent_seconds, world.snapshot.silent_seconds = world.snapshot.silent_seconds, 60.0
        world.snapshot.store = open_snapshot_store(f"s3://{BUCKET}/deep")
        await ignored(world, "PermissionDenied")
        bucket.refuses, bucket.is_silent = False, True
        world.snapshot.silent_seconds = silent_seconds
        with capture_logs() as logs:
            await world.fill(world.database("silent"))
    assert logs[0]["error_type"].startswith("TimeoutError")
    assert "THE-KEY" not in str(logs)


async def test_a_partition_without_a_snapshot_is_no_warning(world: World) -> None:
    with capture_logs() as logs:
        assert await world.fill(world.database("fresh")) == 0
    assert [(one["event"], one["log_level"]) for one in logs] == [("snapshot_missing", "info")]
    assert world.counted("snapshot_restores", "missing") == 1


async def test_a_worker_that_dies_while_it_reads_a_snapshot_leaves_state_that_is_not_used(world: World) -> None:
    fresh = world.database("fresh")
    fresh.write({"row": [(b"deleted since", b"")]}, FILLING, as_of_ms=FILLING_MS)
    fresh.close()
    again = world.database("fresh")
    assert again.age_seconds > world.snapshot.stale_seconds
    await world.fill(again)
    assert rows_of(again) == {}


async def test_a_partition_that_moves_while_it_is_copied_is_no_failure(world: World) -> None:
    owner = filled(world)

    async def move() -> None:
        owner.close()

    world.snapshot.store = MemorySnapshots(each_piece=move)
    with capture_logs() as logs:
        assert not await world.snapshot.take(owner, TABLES)
    assert logs == []
    assert (world.counted("snapshots", "written"), world.counted("snapshots", "failed")) == (0, 0)


async def test_a_partition_that_has_committed_nothing_has_nothing_to_copy(world: World) -> None:
    assert await world.snapshot.take(world.database("new"), TABLES)
    assert world.store.objects == {}


async def test_a_stop_while_a_snapshot_is_read_ends_at_once_and_writes_nothing_more(world: World) -> None:
    await world.snapshot.take(filled(world), TABLES)
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    store = MemorySnapshots(each_piece=wait)
    world.snapshot.store, world.snapshot.silent_seconds = store, 60
    fresh = world.database("fresh")
    filling = asyncio.create_task(world.fill(fresh))
    await begun.wait()
    filling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await filling
    assert fresh.position == DatabasePosition()


def test_partitions_take_their_first_turn_spread_over_the_interval_and_one_at_a_time() -> None:
    chances = iter([0.5, 0.25])
    schedule = Schedule(100, lambda: next(chances))
    assert schedule.next([A, B], 0) is None
    assert schedule.next([A, B], 24) is None
    assert schedule.next([A, B], 60) == B
    schedule.done(B, 60, is_written=True)
    assert schedule.next([A, B], 60) == A
    schedule.done(A, 60, is_written=True)
    assert schedule.next([A, B], 159) is None
    assert schedule.next([A, B], 160) in (A, B)


def test_one_that_failed_is_tried_again_sooner_and_one_that_moved_away_is_forgotten() -> None:
    schedule = Schedule(3 * 3600, lambda: 0.0)
    assert schedule.next([A], 0) == A
    schedule.done(A, 0, is_written=False)
    assert schedule.next([A], RETRY_SECONDS - 1) is None
    assert schedule.next([A], RETRY_SECONDS) == A
    schedule.done(A, 700, is_written=True)
    assert schedule.next([], 701) is None
    assert schedule.next([A], 702) == A


class Worker:
    """As much of an app, and of its consumer, as the taking of snapshots asks for."""

    def __init__(self, world: World, sessions: dict[TopicPartition, Any]) -> None:
        self.engine = Options(snapshot_seconds=0.02)
        self.snapshots = world.store
        self.consumer = self
        self.snapshot = lambda _: world.snapshot
        self.looks = 0
        self._sessions = sessions

    def sessions(self) -> dict[TopicPartition, Any]:
        self.looks += 1
        return self._sessions


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 – nobody sets an event for it
            await asyncio.sleep(0.005)


async def test_a_worker_copies_what_is_open_and_again_only_what_has_changed(world: World) -> None:
    owner = filled(world)
    worker = Worker(world, {A: SimpleNamespace(database=owner, tables=dict.fromkeys(TABLES))})
    task = asyncio.create_task(take_regularly(worker))
    await until(lambda: world.counted("snapshots", "written") == 1)
    first, looks = world.store.objects.pop(KEY), worker.looks
    await until(lambda: worker.looks > looks + 8)
    assert world.store.objects == {}
    owner.write({"row": [(b"new", b"")]}, replace(POSITION, source=10))
    await until(lambda: world.counted("snapshots", "written") == 2)
    assert world.store.objects[KEY] != first
    task.cancel()
    await asyncio.wait([task])


async def test_without_a_place_nothing_is_copied(world: World) -> None:
    await take_regularly(SimpleNamespace(snapshots=None))
