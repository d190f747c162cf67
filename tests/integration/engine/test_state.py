"""The local state is a cache: if lost, old or foreign, it is rebuilt from the changelog, or the worker says why not."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from afterword.embedded.process import Process
from faust_eos.database import Database
from tests.integration.engine.lab import Lab, said, until
from tests.integration.engine.test_concurrent import done

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


FETCH_ENDS_SECONDS = 0.6
"""Time after which the broker has answered the last fetch of a suspended worker."""


@pytest.mark.nightly
@pytest.mark.parametrize("told", [{}, {"at_least_once": True}], ids=["exactly once", "at least once"])
async def test_records_that_expire_under_a_suspended_worker_are_counted(lab: Lab, told) -> None:
    await lab.produce([(0, {})] * 5)
    worker = lab.worker(**told)
    await lab.until_committed(5)
    worker.suspend()
    await asyncio.sleep(FETCH_ENDS_SECONDS)
    await lab.produce([(0, {})] * 10)
    await lab.expire(before=12)
    worker.resume()
    await lab.until_committed(15)

    def handled() -> set[int]:
        return {offset for _, offset in done(lab)} if told else {seen.value["i"] for seen in lab.counted()}

    await until(lambda: handled() == {*range(5), *range(12, 15)}, watching=lab)
    [lost] = said(worker, "records_expired")
    assert (lost["first_lost"], lost["next_offset"], lost["count"]) == (5, 12, 7)


@pytest.mark.nightly
@pytest.mark.parametrize("told", [{}, {"at_least_once": True}], ids=["exactly once", "at least once"])
async def test_shorter_recreated_source_topic_stops_a_running_worker(lab: Lab, told) -> None:
    await lab.produce([(0, {})] * 5)
    worker = lab.worker(**told)
    await lab.until_committed(5)
    worker.suspend()
    await lab.delete(lab.source)
    await lab.create(lab.source)
    await lab.produce([(0, {})] * 2)
    worker.resume()
    assert await lab.exit_code(worker) > 0
    assert "SourceReplaced" in worker.tail() or "SourceRecreated" in worker.tail()


@pytest.mark.nightly
async def test_expired_transaction_marker_is_no_loss(lab: Lab) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=lab.brokers, transactional_id=lab.app_id)
    await producer.start()
    async with producer.transaction():
        await producer.send_and_wait(lab.source, b'{"i": 0}', partition=0)
    await producer.stop()
    worker = lab.worker(at_least_once=True, static=True)
    await until(lambda: done(lab), watching=lab)
    await lab.until_committed(2)
    await lab.stop(worker)
    await lab.expire(before=2)
    await lab.produce([(0, {})])
    worker = lab.worker(at_least_once=True, static=True)
    await lab.until_committed(3)
    assert said(worker, "records_expired") == []


async def grow(lab: Lab, partitions: int) -> None:
    """All topics, as an operator of Kafka does: the number of the changelog's partitions reveals nothing then."""
    for name in (lab.source, lab.changelog, lab.output):
        await lab.add_partitions(name, partitions)
    lab.partitions = partitions
    while len(await lab.producer.partitions_for(lab.source)) < partitions:
        await lab.producer.client.force_metadata_update()


async def test_grown_source_topic_stops_running_and_starting_workers(lab: Lab) -> None:
    await lab.produce((number, {}) for number in range(8))
    worker = lab.worker()
    await lab.all_counted()
    await grow(lab, 4)
    await stops(lab, worker)
    await lab.produce((number, {}) for number in range(4))
    await stops(lab, lab.worker())
    lab.wipe()
    await stops(lab, lab.worker())
    assert len(lab.counted()) == 8
    assert [await lab.committed(partition) for partition in range(4)] == [4, 4, -1, -1]


async def stops(lab: Lab, worker: Process) -> None:
    """Wait until the worker has stopped by itself, and has named both numbers and what to do."""
    assert await lab.exit_code(worker) > 0
    [error] = {line["error"] for line in said(worker, "partition_failed")}
    assert error.startswith(f"{lab.source} has {lab.partitions} partitions, but was read when it had 2:")
    assert error.endswith(f"Move to a new topic with {lab.partitions} partitions")
    assert "\n" not in error
