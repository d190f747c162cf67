"""Lateness of closed episodes."""

import pytest

from benchmarks.deadlines import IDLE_SECONDS, Lateness, Silence, finding, lateness


def test_an_episode_is_late_by_what_it_takes_past_the_idle_seconds() -> None:
    assert lateness({"a": 100.0, "b": 101.0}, {"b": 103.5 + IDLE_SECONDS, "a": 100.25 + IDLE_SECONDS}) == [0.25, 2.5]


@pytest.mark.parametrize(("late", "megabytes", "met"), [(1.9, 199, True), (2.1, 199, False), (1.9, 201, False)])
def test_the_aim_is_that_of_the_latest_one_and_of_memory(late: float, megabytes: int, met: bool) -> None:
    steady, burst = Silence("1,000 a second", [0.5] * 99 + [late]), Silence("20,000 at once", [9.0])
    found = finding(1_000_000, Lateness([steady, burst], megabytes * 1_000_000, 0, 0))
    assert [line.met for line in found.lines] == [met, None]
    assert steady.quantile(0.5) == 0.5
    assert steady.quantile(0.99) == late
