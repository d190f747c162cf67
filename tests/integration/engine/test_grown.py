"""The source gets more partitions: keys have moved away from their state, so the worker stops and says so."""

from afterword.embedded.process import Process
from tests.integration.engine.lab import Lab, said


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
