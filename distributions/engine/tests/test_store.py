"""A table inside an agent is the batch's own view over the committed state; outside it cannot be used."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faust_eos.app import App
from faust_eos.batch import Batch, _current
from faust_eos.database import Database, DatabasePosition
from faust_eos.drivers import Store
from faust_eos.errors import BatchClosed, NotInAgent
from faust_eos.options import Options

KEYS = [b"a", b"b", b"\0", b""]


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App("unit", brokers="127.0.0.1:1", engine=Options(), datadir=tmp_path)


@pytest.fixture
def table(app: App) -> Any:
    table = app.Table("rows")
    app.finalize()
    return table


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "db", {"rows": None})
    yield database
    database.close()


def in_agent(database: Any, do: Callable[[], Any]) -> Batch:
    """Run the block as an agent would, in its own batch."""

    async def run() -> Batch:
        batch = Batch("in-0", database)
        _current.set(batch)
        do()
        return batch

    return asyncio.run(run())


def test_store_of_a_table_is_ours(table: Any) -> None:
    assert isinstance(table.data, Store)


def test_table_is_inaccessible_outside_an_agent(table: Any) -> None:
    with pytest.raises(NotInAgent, match="rows"):
        table[b"a"]
    with pytest.raises(NotInAgent, match="rows"):
        table[b"a"] = b"2"
    with pytest.raises(NotInAgent, match="rows"):
        del table[b"a"]


def test_windows_and_listings_of_tables_are_refused(table: Any) -> None:
    for question in (lambda: table.tumbling(10), lambda: list(table), lambda: len(table), lambda: list(table.items())):
        with pytest.raises(NotImplementedError):
            question()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["set", "delete", "read"]), st.sampled_from(KEYS)), max_size=12))
def test_table_behaves_as_a_dictionary_inside_an_agent(
    table: Any, database: Database, steps: list[tuple[str, bytes]]
) -> None:
    database.write({"rows": [(key, None) for key in KEYS]}, DatabasePosition())
    database.write({"rows": [(b"a", b"old"), (b"\0", b"old")]}, DatabasePosition())
    model = {b"a": b"old", b"\0": b"old"}

    def work() -> None:
        for number, (step, key) in enumerate(steps):
            if step == "set":
                table[key] = model[key] = b"%d" % number
            elif step == "delete" and key in model:
                del table[key], model[key]
            elif step == "read":
                assert table.get(key) == model.get(key)
                assert (key in table) == (key in model)

    batch = in_agent(database, work)
    assert database.get("rows", b"a") == b"old"
    database.write({"rows": table.data.changes(batch)}, DatabasePosition())
    assert {key: row for key in KEYS if (row := database.get("rows", key)) is not None} == model


def test_row_read_but_not_written_is_unchanged(table: Any, database: Database) -> None:
    database.write({"rows": [(b"a", b"1")]}, DatabasePosition())
    batch = in_agent(database, lambda: table.get(b"a"))
    assert table.data.changes(batch) == []


def test_row_created_and_deleted_in_a_batch_is_unchanged(table: Any, database: Database) -> None:
    database.write({"rows": [(b"b", b"2")]}, DatabasePosition())

    def work() -> None:
        for key in (b"a", b"b"):
            table[key] = b"1"
            del table[key]
            assert table.get(key) is None

    assert table.data.changes(in_agent(database, work)) == [(b"b", None)]


def test_database_is_read_once_per_row_and_written_once(table: Any) -> None:
    asked: list[bytes] = []

    def work() -> None:
        for number in range(5):
            assert table.get(b"a", b"0") == b"%d" % number
            table[b"a"] = b"%d" % (number + 1)

    batch = in_agent(SimpleNamespace(get=lambda _, key: asked.append(key)), work)
    assert asked == [b"a"]
    assert table.data.changes(batch) == [(b"a", b"5")]


def test_missing_key_has_the_tables_default_or_the_argument(app: App, tmp_path: Path) -> None:
    counts = app.Table("counts", default=lambda: b"0")
    rows = app.Table("rows")
    app.finalize()
    database = Database(tmp_path / "db", {"rows": None, "counts": None})

    def work() -> None:
        assert (counts[b"a"], counts.get(b"a"), counts.get(b"a", b"1")) == (b"0", b"0", b"0")
        assert (rows.get(b"a"), rows.get(b"a", b"1")) == (None, b"1")
        with pytest.raises(KeyError):
            rows[b"a"]

    batch = in_agent(database, work)
    assert rows.data.changes(batch) == counts.data.changes(batch) == []
    database.close()


def test_write_to_a_closed_batch_raises(table: Any, database: Database) -> None:
    async def late() -> None:
        batch = Batch("in-0", database)
        _current.set(batch)
        batch.finish()
        with pytest.raises(BatchClosed, match="table rows"):
            table[b"a"] = b"1"
        assert batch.tables == {}

    asyncio.run(late())
