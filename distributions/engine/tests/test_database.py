"""The local state of a partition behaves like a persistent dictionary, and finds deadlines without a scan."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterable, Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from distributions.engine.tests.simulation.database import Disk, MemoryDatabase
from faust_eos.app import App
from faust_eos.batch import Batches
from faust_eos.database import MOST_MOVES, Database, DatabasePosition, IdleSince, StateMemory
from faust_eos.errors import StoreFailed
from faust_eos.options import Options

TABLES = ("rows", "row", "plain")
"""One name is a prefix of another, and `plain` has no deadlines."""
FAR = 10**13
TIDY_MS = 10

KEYS = (b"", b"\0", b"a", b"a\0b")
"""Few keys, so that each is written many times."""
deadlines = st.sampled_from([None, 5, 10, 20, 30, 40, 50, IdleSince(5), IdleSince(20), IdleSince(45)])
changes = st.tuples(
    st.sampled_from(TABLES), st.sampled_from(KEYS), st.sampled_from([False, False, False, True]), deadlines
)


def encode(deadline: int | None) -> bytes:
    if deadline is None:
        return b"-"
    return b"%s%d" % (b"x" if isinstance(deadline, IdleSince) else b"", deadline)


def decode(value: bytes) -> int | None:
    if value.startswith(b"x"):
        return IdleSince(value[1:])
    return None if value == b"-" else int(value)


def due_at(deadline: int) -> int:
    return deadline + TIDY_MS if isinstance(deadline, IdleSince) else deadline


AnyDatabase = Database | MemoryDatabase
Open = Callable[..., AnyDatabase]
MEGABYTE = 1024 * 1024
DEADLINES = {"rows": decode, "row": decode, "plain": None}


def opened(path: Path, **fields: Any) -> Database:
    return Database(path, DEADLINES, tidy_after_ms=TIDY_MS, **fields)


def memory() -> Open:
    """Return a function that opens databases on one new disk."""
    disk: Disk = {}
    return lambda path, **fields: MemoryDatabase(path, DEADLINES, disk=disk, tidy_after_ms=TIDY_MS, **fields)


class DatabaseMachine(RuleBasedStateMachine):
    def new_disk(self) -> Open:
        return opened

    @initialize()
    def start(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.open = self.new_disk()
        self.database = self.open(self.directory / "db")
        self.model: dict[tuple[str, bytes], int | None] = {}
        self.position = DatabasePosition()

    @rule(written=st.lists(changes, max_size=8), source=st.integers(0, 10**9))
    def write(self, written: list[tuple[str, bytes, bool, int | None]], source: int) -> None:
        """A key may occur several times, as when a changelog is replayed."""
        rows: dict[str, list[tuple[bytes, bytes | None]]] = {}
        for table, key, deleted, deadline in written:
            rows.setdefault(table, []).append((key, None if deleted else encode(deadline)))
            if deleted:
                self.model.pop((table, key), None)
            else:
                self.model[table, key] = deadline
        self.position = DatabasePosition(source, "lineage", {"rows": source})
        self.database.write(rows, self.position)

    @rule()
    def reopen(self) -> None:
        self.database.close()
        self.database = self.open(self.directory / "db")

    @precondition(lambda self: len(self.model) > 4)
    @rule()
    def wipe(self) -> None:
        self.database.wipe()
        self.model, self.position = {}, DatabasePosition()

    @rule(now=st.integers(0, 60), limit=st.sampled_from([1, 2, 100]))
    def look_for_due_keys(self, now: int, limit: int) -> None:
        found = self.database.due(now, limit)
        expected = self.due(now)
        assert [encode(self.model[row]) for row in found] == [encode(self.model[row]) for row in expected][:limit]
        assert set(found) <= set(expected)
        assert len(found) == len(set(found))

    @rule()
    def replay_into_an_empty_database(self) -> None:
        rebuilt = self.open(self.directory / "other")
        rebuilt.wipe()
        for (table, key), deadline in self.model.items():
            rebuilt.write({table: [(key, encode(deadline))]}, self.position)
        assert sorted(rebuilt.due(FAR, 1000)) == sorted(self.due(FAR))
        rebuilt.close()

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        for row in product(TABLES, KEYS):
            assert self.database.get(*row) == (encode(self.model[row]) if row in self.model else None)
        assert replace(self.database.position, written_ms=0) == self.position

    @invariant()
    def the_next_deadline_is_never_late(self) -> None:
        following = self.database.next_deadline(), self.database.next_tidying()
        for (table, _), deadline in self.model.items():
            if table != "plain" and deadline is not None:
                # a row is found through either kind of index entry, if the entry is not late
                early = following if isinstance(deadline, IdleSince) else following[:1]
                assert min(moment for moment in early if moment is not None) <= due_at(deadline)

    @invariant()
    def the_index_has_at_least_the_rows_with_a_deadline(self) -> None:
        assert self.database.scheduled >= sum(not isinstance(self.model[row], IdleSince) for row in self.due(FAR))

    def due(self, now: int) -> list[tuple[str, bytes]]:
        rows = [
            (isinstance(deadline, IdleSince), deadline, row)
            for row, deadline in self.model.items()
            if row[0] != "plain" and deadline is not None and due_at(deadline) <= now
        ]
        return [row for _, _, row in sorted(rows)]

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.database.close()
            shutil.rmtree(self.directory)


class MemoryDatabaseMachine(DatabaseMachine):
    def new_disk(self) -> Open:
        return memory()


TestDatabase = DatabaseMachine.TestCase
TestMemoryDatabase = MemoryDatabaseMachine.TestCase
TestDatabase.settings = TestMemoryDatabase.settings = settings(
    max_examples=settings().max_examples // 3,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(params=["rocksdb", "memory"])
def open_database(request: pytest.FixtureRequest) -> Open:
    """Open the real database or its twin in memory; both keep the same contract."""
    return opened if request.param == "rocksdb" else memory()


@pytest.fixture
def database(open_database: Open, tmp_path: Path) -> Iterator[AnyDatabase]:
    database = open_database(tmp_path / "db")
    yield database
    database.close()


def test_key_with_a_moved_deadline_is_due_once(database: AnyDatabase) -> None:
    database.write({"rows": [(b"a", b"50"), (b"a", b"30"), (b"a", b"70")]}, DatabasePosition())
    assert database.due(100, 10) == [("rows", b"a")]


def test_keys_are_due_in_the_order_of_moved_deadlines(database: AnyDatabase) -> None:
    database.write({"rows": [(b"moved", b"10"), (b"b", b"20")]}, DatabasePosition())
    database.write({"rows": [(b"moved", b"40")]}, DatabasePosition())
    assert database.due(100, 1) == [("rows", b"b")]
    assert database.due(100, 10) == [("rows", b"b"), ("rows", b"moved")]


def test_deadline_that_moved_away_is_checked_at_once(database: AnyDatabase) -> None:
    database.write({"rows": [(b"a", b"10")]}, DatabasePosition())
    database.write({"rows": [(b"a", b"90")]}, DatabasePosition())
    assert database.next_deadline() in (10, 90)  # never late
    assert database.due(20, 10) == []
    assert database.next_deadline() == 90


def test_rebuild_moves_and_counts_early_deadlines_in_parts(tmp_path: Path) -> None:
    read: list[bytes] = []

    def noted(value: bytes) -> int | None:
        read.append(value)
        return decode(value)

    database = Database(tmp_path / "db", {"rows": noted})
    many = [b"%d" % number for number in range(2 * MOST_MOVES + MOST_MOVES // 2)]
    for deadline in (10, 90):
        database.write({"rows": [(key, encode(deadline)) for key in many]}, DatabasePosition())
    database.write({"rows": [(b"due", b"11")]}, DatabasePosition())
    for _ in range(2):
        read.clear()
        assert database.due(50, 100) is None
        assert len(read) == MOST_MOVES
    assert database.due(50, 100) == [("rows", b"due")]
    assert database.scheduled == len(many) + 1
    database.close()


def test_deadline_count_is_known_after_reopening(tmp_path: Path) -> None:
    now = iter(range(1, 100))
    database = opened(tmp_path / "db", clock=lambda: next(now))
    many = [(b"%d" % number, b"10") for number in range(MOST_MOVES + 1)]
    database.write({"rows": many}, DatabasePosition())
    database.write({"rows": [(b"0", b"-"), (b"1", b"20"), (b"another", b"x30")]}, DatabasePosition())
    while database.due(15, len(many)) is None:
        pass
    database.close()
    again = opened(tmp_path / "db", clock=lambda: next(now))
    assert again.scheduled == MOST_MOVES
    again.wipe()
    assert again.scheduled == 0
    again.close()


def test_idle_rows_come_last_and_are_not_counted(open_database: Open, tmp_path: Path) -> None:
    database = open_database(tmp_path / "db")
    database.write({"rows": [(b"a", b"x5"), (b"b", b"10"), (b"c", b"x7")]}, DatabasePosition())
    assert (database.next_deadline(), database.next_tidying(), database.scheduled) == (10, 15, 1)
    assert database.due(15, 2) == [("rows", b"b"), ("rows", b"a")]
    database.write({"rows": [(b"a", b"20"), (b"b", b"x15")]}, DatabasePosition())
    assert database.due(20, 9) == [("rows", b"a"), ("rows", b"c")]
    assert (database.next_deadline(), database.next_tidying(), database.scheduled) == (20, 17, 1)
    database.close()


def test_idle_rows_follow_the_current_setting_after_a_change(tmp_path: Path) -> None:
    found = []
    for tidy_after_ms in (0, 50, 30, 0):
        database = Database(tmp_path / "db", DEADLINES, tidy_after_ms=tidy_after_ms)
        database.write({"rows": [(b"a", b"x5")]} if not found else {}, DatabasePosition())
        found.append((database.next_tidying(), database.due(40, 9)))
        database.close()
    assert found == [(None, []), (55, []), (35, [("rows", b"a")]), (None, [])]


def test_every_call_on_a_lost_database_fails_with_path(tmp_path: Path) -> None:
    database = opened(tmp_path / "db")
    database.write({"rows": [(b"a", b"1")]}, DatabasePosition())
    database.close()
    shutil.rmtree(database.path)
    questions: tuple[Callable[[], object], ...] = (
        lambda: database.get("rows", b"a"),
        lambda: database.due(5, 1),
        database.next_deadline,
        database.next_tidying,
        database.wipe,
        lambda: database.size_bytes,
    )
    for question in questions:
        with pytest.raises(StoreFailed, match=str(database.path)):
            question()


def test_database_open_elsewhere_is_refused_with_its_path(open_database: Open, database: AnyDatabase) -> None:
    with pytest.raises(StoreFailed, match=str(database.path)):
        open_database(database.path)


def test_closed_database_accepts_no_writes(open_database: Open, tmp_path: Path) -> None:
    database = open_database(tmp_path / "db")
    database.close()
    with pytest.raises(StoreFailed, match="closed"):
        database.write({"rows": [(b"a", b"1")]}, DatabasePosition())


def test_database_age_counts_from_the_last_write_across_reopening(open_database: Open, tmp_path: Path) -> None:
    now = 1_000_000
    first = open_database(tmp_path / "db", clock=lambda: now)
    assert first.age_seconds == 0
    first.write({"plain": [(b"k", b"v")]}, DatabasePosition(1, "lineage"))
    first.close()
    again = open_database(tmp_path / "db", clock=lambda: now + 5_000)
    assert again.age_seconds == 5
    again.write({}, again.position, as_of_ms=now - 2_000)
    assert again.age_seconds == 7
    again.write({}, again.position, as_of_ms=now + 24 * 3_600_000)
    assert again.age_seconds == float("inf"), "a clock that was ahead says nothing about its age"
    again.close()


def test_rows_with_deadlines_are_counted_without_a_scan(tmp_path: Path) -> None:
    database = opened(tmp_path / "db")
    with_deadlines = [(b"%d" % number, encode(10)) for number in range(3)]
    database.write({"rows": with_deadlines}, DatabasePosition(1, "lineage", {"rows": 1}))
    database.write({"rows": [(b"0", encode(20))]}, DatabasePosition(2, "lineage", {"rows": 2}))
    assert database.scheduled == 3
    database.write({"rows": [(b"1", encode(None))]}, DatabasePosition(3, "lineage", {"rows": 3}))
    assert len(database.due(15, 100)) == 1
    assert database.scheduled == 2
    assert database.scheduled == 2
    assert database.size_bytes > 0
    database.close()


async def test_databases_sharing_memory_leave_half_of_it_to_files() -> None:
    half = 8 * MEGABYTE
    with tempfile.TemporaryDirectory() as directory:
        memory = StateMemory(2 * half)
        databases = [opened(Path(directory) / str(number), memory=memory) for number in range(8)]
        most = 0
        for n in range(170):  # 3.4 MB per database: alone, none would write a file
            for database in databases:
                database.write({"plain": [(f"{n}".encode(), bytes(20_000))]}, database.position)
            most = max(most, memory.buffers.get_usage())
        async with asyncio.timeout(120):  # files are written in the background, after a write
            while memory.buffers.get_usage() > half:
                for database in databases:
                    database.write({"plain": [(b"another", b"")]}, database.position)
                await asyncio.sleep(0.01)
        assert most > half
        for database in databases:
            database.close()


class FullDisk:
    """A full_database like rocksdict's to which nothing can be written."""

    def write(self, batch: object) -> None:
        raise Exception("IO error: No space left on device")

    def get(self, key: bytes) -> bytes:
        raise Exception("Corruption: block checksum mismatch")

    def close(self) -> None:
        raise Exception("IO error: Writer has previous error")


@pytest.fixture
def full_database(tmp_path: Path) -> Database:
    full_database = Database(tmp_path / "state", {"table": None})
    full_database.close()
    full_database._db = FullDisk()
    return full_database


def test_failed_write_names_the_directory_and_the_cause(full_database: Database) -> None:
    with pytest.raises(StoreFailed, match=r"local state in .*state cannot be used: IO error: No space left"):
        full_database.write({"table": [(b"key", b"value")]}, DatabasePosition(source=1))


def test_failed_read_does_not_blame_the_record(full_database: Database) -> None:
    with pytest.raises(StoreFailed, match="block checksum mismatch"):
        full_database.get("table", b"key")


def test_closing_does_not_hide_an_earlier_failure(full_database: Database) -> None:
    full_database.close()


def test_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailed, match="file/state"):
        Database(tmp_path / "file" / "state", {"table": None})


LONG_AGO = 1_000_000.0
"""Seconds since 1970."""


async def read(_: AsyncIterable[Any]) -> None: ...


def put_state(directory: Path, *names: str, used: float = LONG_AGO) -> None:
    for name in names:
        (directory / name).mkdir()
        for file in ("CURRENT", "LOG"):
            (directory / name / file).touch()
            os.utime(directory / name / file, (LONG_AGO, LONG_AGO))
        os.utime(directory / name / "LOG", (used, used))


async def test_only_old_state_of_the_apps_topics_is_removed(tmp_path: Path) -> None:
    app = App("shop", brokers="localhost:9092", engine=Options(), datadir=tmp_path)
    app.agent(app.topic("orders", schema=Batches()))(read)
    directory = app.conf.tabledir
    directory.mkdir(parents=True)
    put_state(directory, "orders-1", "orders-12")
    put_state(directory, "others-1", "orders")
    put_state(directory, "orders-3", used=time.time())
    (directory / "orders-4").mkdir()  # a killed process had begun to remove it
    await app.on_first_start()
    assert {path.name for path in directory.iterdir()} == {"orders-3", "orders", "others-1"}
