"""The source gets more partitions: keys have moved away from their state, and nothing is read as if they had not."""

import asyncio

from aiokafka.structs import OffsetAndMetadata

from afterword.streams.runtime.options import Clients, Options
from afterword.streams.runtime.transaction import TransactionalProducer
from tests.integration.runtime.lab import Lab, until

SETTLED_SECONDS = 2.0
"""Several looks at the source: what is going to be read has been."""


async def grow(lab: Lab, partitions: int) -> None:
    """All topics, as an operator of Kafka does: the changelog's number tells nothing any more."""
    for name in (lab.source, lab.changelog, lab.output):
        await lab.add_partitions(name, partitions)
    lab.partitions = partitions
    while len(await lab.producer.partitions_for(lab.source)) < partitions:
        await lab.producer.client.force_metadata_update()


async def hand_over(lab: Lab) -> None:
    """Let the group's commits name the layout that there is, and nothing else."""
    before = await lab.admin.list_consumer_group_offsets(lab.app_id)
    named = {
        source: OffsetAndMetadata(found.offset, f"partitions={lab.partitions}") for source, found in before.items()
    }
    options = Options(transaction_timeout_seconds=10)
    producer = TransactionalProducer(f"{lab.app_id}-test", Clients({"bootstrap_servers": lab.brokers}), options)
    await producer.open(20)
    try:
        await producer.commit_outputs([], named, lab.app_id)
    finally:
        await producer.close()


async def nothing_new_is_read(lab: Lab) -> None:
    """Look at the commits: the lab reads the outputs of old partitions only."""
    assert [await lab.committed(partition) for partition in (2, 3)] == [-1, -1], lab.logs()


async def test_a_running_worker_reads_no_new_partition_and_goes_on_when_the_state_was_handed_over(lab: Lab) -> None:
    await lab.produce((number, {}) for number in range(8))
    worker = lab.worker()
    await lab.all_counted()
    await grow(lab, 4)
    await until(lambda: "source_grown" in lab.logs(), watching=lab)
    assert f"{lab.source} has 4 partitions, its state was made with 2" in lab.logs()
    await lab.produce((number, {}) for number in range(8))
    await until(lambda: len(lab.counted()) == 12, watching=lab)
    await asyncio.sleep(SETTLED_SECONDS)
    assert len(lab.counted()) == 12
    await nothing_new_is_read(lab)
    await lab.stop(worker)
    await hand_over(lab)
    lab.worker()
    for partition in range(4):  # from the beginning of the new partitions: nothing is passed over
        await lab.until_committed(2, partition)


async def test_a_restart_does_not_go_on_either_with_and_without_its_disk(lab: Lab) -> None:
    await lab.produce((number, {}) for number in range(8))
    worker = lab.worker()
    await lab.all_counted()
    await lab.stop(worker)
    await grow(lab, 4)
    await lab.produce((number, {}) for number in (2, 3, 2, 3))  # the new partitions
    await stays_away(lab, "a")
    lab.wipe()
    await stays_away(lab, "b")


async def stays_away(lab: Lab, name: str) -> None:
    worker = lab.worker(name)
    await until(lambda: "source_grown" in worker.tail(), watching=lab)
    await asyncio.sleep(SETTLED_SECONDS)
    assert len(lab.counted()) == 8
    await nothing_new_is_read(lab)
    await lab.stop(worker)


async def test_of_a_source_that_did_not_grow_to_a_multiple_nothing_is_read(lab: Lab) -> None:
    await lab.produce((number, {}) for number in range(8))
    lab.worker()
    await lab.all_counted()
    await grow(lab, 3)
    await until(lambda: "source_grown" in lab.logs(), watching=lab)
    await asyncio.sleep(SETTLED_SECONDS)
    await lab.produce((number, {}) for number in range(6))
    await asyncio.sleep(SETTLED_SECONDS)
    assert len(lab.counted()) == 8
    assert all(worker.running for worker in lab.workers), "it waits: a restart would change nothing"


async def test_two_workers_read_only_the_old_partitions_whoever_has_them(lab: Lab) -> None:
    async with lab.loaded():
        lab.worker("a")
        await until(lambda: len(lab.counted()) > 20, watching=lab)
    await lab.all_counted()
    await grow(lab, 4)
    lab.worker("b")
    await until(lambda: all("source_grown" in worker.tail() for worker in lab.workers), watching=lab)
    known = len(lab.keys)
    await lab.produce((number, {}) for number in range(8))
    await until(lambda: len(lab.counted()) == known + 4, watching=lab)
    await asyncio.sleep(SETTLED_SECONDS)
    assert len(lab.counted()) == known + 4
    await nothing_new_is_read(lab)
