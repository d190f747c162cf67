"""A partition goes on where its standby is: only the tail is replayed, and nothing is lost or counted twice."""

from contextlib import suppress
from pathlib import Path

from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from afterword.embedded.process import Process
from afterword.streams.runtime.database import read_position
from afterword.streams.runtime.errors import StoreFailed
from tests.integration.runtime.lab import Lab, said, until

WITH_STANDBY = {"standbys": 1}
KEYS = 100
TAIL = 20
"""Most changelog records that may be left to replay."""


async def test_a_killed_workers_partition_is_at_work_on_its_standby_after_the_tail_alone(lab: Lab) -> None:
    first, second = lab.worker("a", options=WITH_STANDBY), lab.worker("b", options=WITH_STANDBY)
    await until(lambda: last_opened(first) == last_opened(second) == 1, watching=lab)
    await count_some(lab)
    await until_followed(lab, "a", "b")
    first.kill()
    await until(lambda: last_opened(second) == lab.partitions, watching=lab)
    await lab.produce((number, {}) for number in range(KEYS))
    await lab.all_counted()
    taken = said(second, "recovered")[-1]
    assert not taken["rebuilt"]
    assert taken["records"] <= TAIL

    third = lab.worker("c", options=WITH_STANDBY)  # without a disk
    await until(lambda: said(third, "standby_caught_up"), watching=lab)
    assert said(third, "standby_caught_up")[0]["records"] > KEYS / 2
    await count_some(lab)
    await until_followed(lab, "b", "c")
    opened = len(said(third, "recovered"))
    second.suspend()
    await until(lambda: len(said(third, "recovered")) > opened, watching=lab)
    assert said(third, "recovered")[-1]["records"] <= TAIL
    await lab.produce((number, {}) for number in range(KEYS))
    second.resume()  # what it was at is fenced
    await lab.produce((number, {}) for number in range(KEYS))
    await lab.all_counted()
    await until(lambda: last_opened(second) == last_opened(third) == 1, watching=lab)


async def test_a_worker_that_replaces_a_dead_one_at_once_without_its_disk_gets_partitions_when_it_has_caught_up(
    lab: Lab,
) -> None:
    """It is in the group when the session of the dead one ends: its state is at the standby only."""
    first, second = lab.worker("a", options=WITH_STANDBY), lab.worker("b", options=WITH_STANDBY)
    await until(lambda: last_opened(first) == last_opened(second) == 1, watching=lab)
    await count_some(lab)
    await until_followed(lab, "a", "b")
    opened = len(said(second, "recovered"))
    first.kill()
    third = lab.worker("c", options=WITH_STANDBY)
    await until(lambda: len(said(second, "recovered")) > opened, watching=lab)
    taken = said(second, "recovered")[-1]
    assert not taken["rebuilt"]
    assert taken["records"] <= TAIL
    assert not said(third, "recovered")
    await until(lambda: last_opened(second) == last_opened(third) == 1, watching=lab)
    assert said(third, "standbys_ready")
    await until(lambda: said(third, "recovered"), watching=lab)
    assert said(third, "recovered")[-1]["records"] <= TAIL
    await count_some(lab)


async def test_a_standby_of_a_truncated_changelog_closes_and_its_worker_goes_on(lab: Lab) -> None:
    first = lab.worker("a", options=WITH_STANDBY)
    await count_some(lab)
    await lab.configure(lab.changelog, **{"cleanup.policy": "compact,delete"})
    await lab.admin.delete_records({TopicPartition(lab.changelog, 0): RecordsToDelete(before_offset=2)})
    await lab.configure(lab.changelog, **{"cleanup.policy": "compact"})
    second = lab.worker("b", options=WITH_STANDBY)  # the first keeps partition 0, of which it has the rows
    await until(lambda: said(second, "standby_closed"), watching=lab)
    assert said(second, "standby_closed")[0]["error_type"] == "changelog_truncated"
    await until(lambda: said(first, "standby_caught_up"), watching=lab)
    await count_some(lab)
    assert first.running
    assert second.running


async def count_some(lab: Lab) -> None:
    for _ in range(5):
        await lab.produce((number, {}) for number in range(KEYS))
    await lab.all_counted()


def last_opened(worker: Process) -> int:
    """Number of partitions that its last rebalance opened or kept."""
    rebalances = said(worker, "rebalanced")
    return rebalances[-1]["opened"] + rebalances[-1]["kept"] if rebalances else 0


async def until_followed(lab: Lab, *names: str) -> None:
    """Wait until each state directory of these workers is up to date, standbys' too."""
    ends = {source: await lab.committed(source) for source in range(lab.partitions)}

    def is_up_to_date() -> bool:
        return all(position(path) >= ends[int(path.name[-1])] for name in names for path in states(lab, name))

    await until(lambda: all(len(states(lab, name)) == lab.partitions for name in names), watching=lab)
    await until(is_up_to_date, watching=lab)


def states(lab: Lab, name: str) -> list[Path]:
    return lab.databases(name)


def position(path: Path) -> int:
    with suppress(StoreFailed):  # looked at while it is being compacted
        return read_position(path).source
    return -1
