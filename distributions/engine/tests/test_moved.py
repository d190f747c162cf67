"""Removal of the local state of other workers' partitions."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition

from faust_eos.worker import REMOVED, remove_moved_state

GRACE_SECONDS = 3600.0
LONG_AGO = 1_000_000.0
"""Seconds since 1970."""
ORDERS = [TopicPartition("orders", number) for number in range(3)]


def put_state(directory: Path, *names: str, used: float = LONG_AGO) -> None:
    for name in names:
        (directory / name).mkdir()
        for file in ("CURRENT", "LOG"):
            (directory / name / file).touch()
            os.utime(directory / name / file, (LONG_AGO, LONG_AGO))
        os.utime(directory / name / "LOG", (used, used))


def a_worker(directory: Path, *, joined: bool = True) -> Any:
    """Return a worker that has partition 0 and has just been given partition 2."""
    kafka = SimpleNamespace(subscription=lambda: {"orders"}, assignment=lambda: {ORDERS[0]})
    return SimpleNamespace(
        consumer=SimpleNamespace(kafka=kafka, joined=joined, partitions={ORDERS[2]: None}),
        conf=SimpleNamespace(tabledir=directory),
        engine=SimpleNamespace(moved_grace_seconds=GRACE_SECONDS),
    )


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


async def test_only_old_state_of_other_workers_partitions_of_the_apps_topics_is_removed(tmp_path: Path) -> None:
    put_state(tmp_path, "orders-1", f"orders-5{REMOVED}")
    put_state(tmp_path, "orders-0", "orders-2", "orders-x", "others-1")
    put_state(tmp_path, "orders-3", used=4e9)
    await remove_moved_state(a_worker(tmp_path))
    assert names_in(tmp_path) == {"orders-0", "orders-2", "orders-x", "others-1", "orders-3"}


async def test_nothing_is_removed_during_a_rebalance(tmp_path: Path) -> None:
    put_state(tmp_path, "orders-1")
    await remove_moved_state(a_worker(tmp_path, joined=False))
    assert names_in(tmp_path) == {"orders-1"}
