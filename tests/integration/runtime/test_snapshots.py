"""State that is lost comes back from a snapshot and the end of the changelog, as it would from all of the changelog."""

from pathlib import Path
from typing import Any

from afterword.embedded.process import Process
from afterword.streams.runtime.database import Database
from tests.integration.runtime.counter import due_of
from tests.integration.runtime.lab import Lab, said, until

KEYS = 100


def told(lab: Lab, **options: Any) -> dict[str, Any]:
    return {"snapshots": str(lab.directory / "kept"), "options": {"snapshot_seconds": 1, **options}}


async def test_a_snapshot_and_the_tail_are_the_state_that_the_whole_changelog_gives(lab: Lab) -> None:
    first = lab.worker("a", **told(lab))
    async with lab.loaded(keys=KEYS):
        await until(lambda: copied(lab, first), watching=lab)
    await lab.all_counted()
    first.kill()
    second = lab.worker("b", **told(lab))
    await until(lambda: len(said(second, "recovered")) == lab.partitions, watching=lab)
    assert len(said(second, "snapshot_restored")) == lab.partitions
    assert sum(one["rows"] for one in said(second, "snapshot_restored")) > KEYS / 2
    assert not any(one["rebuilt"] for one in said(second, "recovered"))
    second.kill()
    third = lab.worker("c")
    await until(lambda: len(said(third, "recovered")) == lab.partitions, watching=lab)
    third.kill()
    whole, restored = said(third, "recovered"), said(second, "recovered")
    assert sum(one["records"] for one in restored) < sum(one["records"] for one in whole)
    assert contents(lab, "b") == contents(lab, "c")
    lab.worker("b", **told(lab))
    await lab.produce((number, {}) for number in range(KEYS))
    await lab.all_counted()


async def test_a_snapshot_of_another_changelog_is_thrown_away(lab: Lab) -> None:
    first = lab.worker("a", **told(lab))
    await lab.produce((number, {}) for number in range(KEYS))
    await lab.all_counted()
    await until(lambda: copied(lab, first), watching=lab)
    await lab.stop(first)
    await lab.start_anew()
    second = lab.worker("b")
    for _ in range(3):  # the new changelog is longer than the one before
        await lab.produce((number, {}) for number in range(KEYS))
    await lab.all_counted()
    await lab.stop(second)
    third = lab.worker("c", **told(lab, snapshot_seconds=3600))
    await until(lambda: len(said(third, "snapshot_ignored")) == lab.partitions, watching=lab)
    assert {one["error_type"] for one in said(third, "snapshot_ignored")} == {"other_changelog"}
    await lab.produce((number, {}) for number in range(KEYS))
    await lab.all_counted()


async def test_a_standby_without_state_begins_with_a_snapshot_too(lab: Lab) -> None:
    first = lab.worker("a", **told(lab, standbys=1))
    await lab.produce((number, {}) for number in range(KEYS))
    await lab.all_counted()
    await until(lambda: copied(lab, first), watching=lab)
    second = lab.worker("b", **told(lab, standbys=1))
    await until(lambda: said(second, "standby_caught_up"), watching=lab)
    assert said(second, "snapshot_restored")
    await lab.produce((number, {}) for number in range(KEYS))
    await lab.all_counted()


def copied(lab: Lab, worker: Process) -> bool:
    """Tell whether each partition has a snapshot."""
    return len({one["snapshot"] for one in said(worker, "snapshot_written")}) == lab.partitions


def contents(lab: Lab, name: str) -> dict[str, list[tuple[bytes, bytes]]]:
    """Return the rows of each partition's database."""
    return {path.name: rows_of(path) for path in lab.databases(name)}


def rows_of(path: Path) -> list[tuple[bytes, bytes]]:
    database = Database(path, {"counts": due_of})
    try:
        return database.rows_after("counts", None, 1 << 30)
    finally:
        database.close()
