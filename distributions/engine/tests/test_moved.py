"""Removal of the local state of other workers' partitions."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from faust_eos.database import Database, DatabasePosition, read_position
from faust_eos.worker import REMOVED, LocalState, remove_moved, superseded

NOW, GRACE = 10_000_000, 3_600_000
ORDERS = [TopicPartition("orders", number) for number in range(4)]
OLD = NOW - GRACE - 1

offsets = st.integers(-1, 5)
kept = st.builds(LocalState, st.just(Path("state")), st.sampled_from(ORDERS), offsets, st.integers(OLD - 1, OLD + 2))


def state(number: int, offset: int = 5, written_ms: int = OLD) -> LocalState:
    return LocalState(Path(f"orders-{number}"), ORDERS[number], offset, written_ms)


def test_state_that_another_owner_has_gone_beyond_goes_after_the_grace_time() -> None:
    assert superseded([state(0)], [], {ORDERS[0]: 6}, NOW, GRACE) == [state(0)]
    assert superseded([state(0)], [], {ORDERS[0]: 6}, NOW - 1, GRACE) == []


def test_state_of_an_owned_partition_stays() -> None:
    assert superseded([state(0)], [ORDERS[0]], {ORDERS[0]: 6}, NOW, GRACE) == []


def test_state_that_nobody_has_gone_beyond_stays() -> None:
    assert superseded([state(0), state(1)], [], {ORDERS[0]: 5}, NOW, GRACE) == []


@given(
    st.lists(kept),
    st.sets(st.sampled_from(ORDERS)),
    st.dictionaries(st.sampled_from(ORDERS), offsets),
)
def test_nothing_else_ever_goes(states: list[LocalState], assigned: set[TopicPartition], committed: Any) -> None:
    gone = superseded(states, assigned, committed, NOW, GRACE)
    for one in states:
        is_needed = one.source in assigned or committed.get(one.source, -1) <= one.offset
        assert (one in gone) == (not is_needed and one.written_ms < NOW - GRACE)


def a_worker(directory: Path, *, joined: bool = True, late: TopicPartition | None = None) -> Any:
    """Return a worker that has partition 0. The group assigns it `late` while it asks for offsets."""
    assigned = {ORDERS[0]}

    async def committed(_: TopicPartition) -> int:
        if late:
            assigned.add(late)
        return 9

    kafka = SimpleNamespace(
        subscription=lambda: {"orders"}, assignment=lambda: frozenset(assigned), committed=committed
    )
    return SimpleNamespace(
        consumer=SimpleNamespace(kafka=kafka, joined=joined, partitions={}),
        conf=SimpleNamespace(tabledir=directory, broker_session_timeout=30.0),
        tables={"rows": SimpleNamespace(takes=lambda _: True)},
        engine=SimpleNamespace(moved_grace_seconds=GRACE / 1000, clock=lambda: NOW),
    )


def put_state(directory: Path, *names: str) -> None:
    for name in names:
        database = Database(directory / name, {}, clock=lambda: OLD)
        database.write({}, DatabasePosition(source=5))
        database.close()


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


async def test_only_directories_of_moved_partitions_of_the_apps_topics_are_removed(tmp_path: Path) -> None:
    put_state(tmp_path, "orders-0", "orders-1", "others-1", "orders", f"orders-3{REMOVED}")
    await remove_moved(a_worker(tmp_path))
    assert names_in(tmp_path) == {"orders-0", "others-1", "orders"}
    assert read_position(tmp_path / "orders-0").source == 5


async def test_state_that_cannot_be_read_is_named_and_keeps_no_other_from_being_removed(tmp_path: Path) -> None:
    put_state(tmp_path, "orders-1", f"orders-3{REMOVED}")
    (tmp_path / "orders-2").mkdir()
    with capture_logs() as logs:
        await remove_moved(a_worker(tmp_path))
    assert names_in(tmp_path) == {"orders-2"}
    assert [line["path"] for line in logs if line["event"] == "moved_state_unreadable"] == [str(tmp_path / "orders-2")]


async def test_a_removal_that_was_cut_short_is_finished_though_the_broker_does_not_answer(tmp_path: Path) -> None:
    put_state(tmp_path, "orders-1", f"orders-3{REMOVED}")
    worker = a_worker(tmp_path)

    async def committed(_: TopicPartition) -> int:
        raise KafkaConnectionError

    worker.consumer.kafka.committed = committed
    with pytest.raises(KafkaConnectionError):
        await remove_moved(worker)
    assert names_in(tmp_path) == {"orders-1"}


async def test_a_partition_that_comes_back_meanwhile_keeps_its_state(tmp_path: Path) -> None:
    put_state(tmp_path, "orders-1", "orders-2")
    await remove_moved(a_worker(tmp_path, late=ORDERS[1]))
    assert names_in(tmp_path) == {"orders-1"}


async def test_nothing_is_removed_during_a_rebalance(tmp_path: Path) -> None:
    put_state(tmp_path, "orders-1")
    await remove_moved(a_worker(tmp_path, joined=False))
    assert names_in(tmp_path) == {"orders-1"}


async def test_a_session_timeout_that_is_longer_than_the_grace_time_counts(tmp_path: Path) -> None:
    put_state(tmp_path, "orders-1")
    worker = a_worker(tmp_path)
    worker.conf.broker_session_timeout = GRACE / 1000 + 1
    await remove_moved(worker)
    assert names_in(tmp_path) == {"orders-1"}


async def test_state_that_is_open_can_be_looked_at(tmp_path: Path) -> None:
    database = Database(tmp_path / "orders-0", {})
    database.write({}, DatabasePosition(source=7))
    found = await asyncio.to_thread(read_position, tmp_path / "orders-0")
    database.close()
    assert found.source == 7
