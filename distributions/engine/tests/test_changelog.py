"""The record that ends each transaction in a changelog."""

from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from distributions.engine.tests.simulation.database import MemoryDatabase
from faust_eos.changelog import (
    BOOKMARK_KEY,
    Bookmark,
    Replay,
    changelog_key,
    check_configs,
    decode_bookmark,
    new_lineage,
    row_key,
)
from faust_eos.database import DatabasePosition
from faust_eos.errors import ChangelogDeletes, ChangelogReplaced
from faust_eos.options import wall_clock_ms

CHANGELOG = TopicPartition("orders", 3)


@given(st.integers(0, 2**62), st.sampled_from(["", "1f0c"]), st.integers(-1, 9), st.integers(1, 9))
def test_bookmark_survives_a_round_trip(source: int, source_id: str, previous: int, records: int) -> None:
    bookmark = Bookmark(source, new_lineage(), ["rows"], source_id, previous, records)
    assert decode_bookmark(bookmark.encode()) == bookmark


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1), st.data())
def test_links_hold_in_one_log_and_break_when_recreated(transactions, data) -> None:
    """Each transaction leaves a gap after the previous one, and consists of records and their bookmark."""
    anew = data.draw(st.integers(0, len(transactions)))
    end, previous = 0, -1
    for number, (others, records) in enumerate(transactions):
        if number == anew:
            end = others = 0
        end += others + records
        mark = Bookmark(end, "lineage", ["rows"], previous=previous, records=records)
        if number == anew > 0:
            with pytest.raises(ChangelogReplaced, match="orders-3"):
                mark.check(CHANGELOG, end - 1)
        else:
            mark.check(CHANGELOG, end - 1)
        previous = end - 1


def configs(**different: str) -> dict[str, str | None]:
    return {"cleanup.policy": "compact", "delete.retention.ms": "86400000"} | different


def test_compacted_changelog_is_accepted_silently() -> None:
    with capture_logs() as logs:
        check_configs("rows", configs(), stale_seconds=12 * 3600)
    assert logs == []


@pytest.mark.parametrize("policy", ["delete", "compact,delete", "delete,compact", ""])
def test_changelog_with_deletion_policy_is_refused_and_policy_named(policy: str) -> None:
    with pytest.raises(ChangelogDeletes, match=f"changelog rows has cleanup.policy={policy}"):
        check_configs("rows", configs(**{"cleanup.policy": policy}), stale_seconds=12 * 3600)


def test_tombstones_that_expire_before_a_rebuild_cause_a_warning() -> None:
    with capture_logs() as logs:
        check_configs("rows", configs(**{"delete.retention.ms": "3600000"}), stale_seconds=12 * 3600)
    [warning] = logs
    assert (warning["event"], warning["topic"]) == ("changelog_retention_too_short", "rows")
    assert (warning["delete_retention_ms"], warning["should_exceed_ms"]) == (3_600_000, 43_200_000)


@given(st.binary(max_size=4) | st.builds(BOOKMARK_KEY.__add__, st.binary(max_size=3)))
def test_no_row_key_can_be_mistaken_for_a_bookmark(key: bytes) -> None:
    assert changelog_key(key) != BOOKMARK_KEY
    assert row_key(changelog_key(key)) == key


class NoChangelogs:
    """A consumer without topics."""

    async def beginning_offsets(self, _: Any) -> dict[Any, int]:
        return {}

    end_offsets = beginning_offsets


@pytest.mark.parametrize(("hours", "is_kept"), [(11, True), (13, False)])
async def test_state_older_than_the_compaction_horizon_is_rebuilt(hours: int, is_kept: bool) -> None:
    now = wall_clock_ms()
    database = MemoryDatabase(Path("state"), {"rows": None}, disk={}, clock=lambda: now)
    change = {"rows": [(b"key", b"value")]}
    database.write(change, DatabasePosition(source=5), as_of_ms=now - hours * 3_600_000)
    _, rebuilt = await Replay(database, {}, 12 * 3600.0, lambda _: None, NoChangelogs()).run()
    assert rebuilt is not is_kept
    assert (database.get("rows", b"key") is not None) is is_kept


class RecreatedChangelog:
    """A consumer of a changelog that is recreated empty once its end is known."""

    def __init__(self) -> None:
        self._ends = [4, 0]

    async def beginning_offsets(self, changelogs: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(changelogs, 0)

    async def end_offsets(self, changelogs: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(changelogs, self._ends.pop(0))

    def seek(self, *_: Any) -> None: ...

    async def position(self, _: TopicPartition) -> int:
        return 0

    async def getmany(self, **_: Any) -> dict[TopicPartition, list[Any]]:
        return {}


@pytest.mark.timeout(20)
async def test_replay_restarts_when_its_changelog_is_recreated_meanwhile() -> None:
    database = MemoryDatabase(Path("state"), {"rows": None}, disk={}, clock=wall_clock_ms)
    with pytest.raises(TimeoutError, match="recreated"):
        await Replay(database, {"rows": CHANGELOG}, 12 * 3600.0, lambda _: None, RecreatedChangelog()).run()
