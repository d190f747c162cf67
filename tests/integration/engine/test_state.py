"""The local state is a cache: if lost, old or foreign, it is rebuilt from the changelog, or the worker says why not."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from faust_eos.database import Database
from tests.integration.engine.lab import Lab, said

RECORDS = [(number % 4, {}) for number in range(40)]


async def run_once(lab: Lab, name: str = "a") -> None:
    """Run a worker until it has counted everything produced so far."""
    worker = lab.worker(name, static=True)
    await lab.all_counted()
    await lab.stop(worker)


async def test_older_copy_of_the_state_catches_up(lab: Lab) -> None:
    await lab.produce(RECORDS)
    await run_once(lab)
    shutil.copytree(lab.state(), lab.directory / "copy")
    await lab.produce(RECORDS)
    await run_once(lab)
    lab.wipe()
    shutil.copytree(lab.directory / "copy", lab.state())
    await lab.produce(RECORDS)
    await run_once(lab)


async def test_deleted_changelog_stops_the_worker(lab: Lab) -> None:
    await lab.produce(RECORDS)
    await run_once(lab)
    await lab.delete(lab.changelog)
    missing = lab.worker(static=True)
    assert await lab.exit_code(missing) > 0
    assert lab.changelog in missing.tail()
    assert lab.source in missing.tail()

    await lab.create(lab.changelog, **{"cleanup.policy": "compact"})
    worker = lab.worker(static=True)
    assert await lab.exit_code(worker) > 0
    assert "StateLost" in worker.tail()
    assert lab.source in worker.tail()
    assert len(lab.outputs) == len(RECORDS)


async def test_shorter_source_topic_stops_the_worker(lab: Lab) -> None:
    await lab.produce(RECORDS)
    await run_once(lab)
    await lab.delete(lab.source)
    await lab.create(lab.source)
    worker = lab.worker(static=True)
    assert await lab.exit_code(worker) > 0
    assert "SourceRecreated" in worker.tail()


@pytest.mark.nightly
async def test_longer_recreated_source_topic_stops_a_starting_worker(lab: Lab) -> None:
    await lab.produce(RECORDS)
    await run_once(lab)
    await lab.delete(lab.source)
    await lab.create(lab.source)
    await lab.produce([*RECORDS, *RECORDS])
    for name in ("a", "without a disk"):
        worker = lab.worker(name)
        assert await lab.exit_code(worker) > 0
        assert f"{lab.source} was deleted and recreated" in worker.tail()
    assert len(lab.counted()) == len(RECORDS)


async def test_state_ahead_of_its_changelog_is_rebuilt(lab: Lab) -> None:
    """The changelogs have lost their last records, which only the local state still has."""
    await lab.produce(RECORDS)
    await run_once(lab)
    for path in lab.databases():
        put_ahead(path)
    await lab.produce(RECORDS)
    worker = lab.worker(static=True)
    await lab.all_counted()
    assert any(line["rebuilt"] for line in said(worker, "recovered")[-lab.partitions :])


def put_ahead(path: Path) -> None:
    database = Database(path, {"counts": None})
    position = database.position
    marks = {table: offset + 1000 for table, offset in position.bookmarks.items()}
    row = (b"key-1", b'{"n": 1000, "due": null}')
    database.write({"counts": [row]}, replace(position, source=position.source + 10, bookmarks=marks))
    database.close()


@pytest.mark.nightly
async def test_changelog_with_too_few_partitions_stops_the_worker(lab: Lab) -> None:
    await lab.add_partitions(lab.source, 3)
    worker = lab.worker()
    assert await lab.exit_code(worker) > 0
    assert f"changelog {lab.changelog} has 2 partitions, its source {lab.source} has 3" in worker.tail()


@pytest.mark.nightly
async def test_changelog_with_deleted_records_stops_the_starting_worker(lab: Lab) -> None:
    await lab.configure(lab.changelog, **{"cleanup.policy": "compact,delete"})
    worker = lab.worker()
    assert await lab.exit_code(worker) > 0
    assert f"changelog {lab.changelog} has cleanup.policy=compact,delete" in worker.tail()
