"""The phases of a pause as the next owner's log tells of them, and what is made of them."""

from datetime import UTC, datetime

import pytest

from benchmarks.probing import Probe, Trip
from benchmarks.standbys import WITH_STANDBY, WITHOUT, Pause, finding, number_of, pause

SESSION_END = 1_800_000_000.0


def at(seconds: float) -> str:
    """Timestamp in a log, by the seconds since the end of the session."""
    return datetime.fromtimestamp(SESSION_END + seconds, UTC).isoformat().replace("+00:00", "Z")


def test_the_phases_follow_one_another_and_are_the_whole_pause_together() -> None:
    rebalanced = {"timestamp": at(0.30)}
    recovered = {"timestamp": at(0.50), "seconds": 0.02, "records": 7, "partition": "some-messages-12"}
    found = pause(SESSION_END, rebalanced, recovered, SESSION_END + 0.75)
    phases = [found.assigned, found.opening, found.replay, found.commit]
    assert phases == pytest.approx([0.30, 0.18, 0.02, 0.25], abs=1e-5)
    assert (found.beyond, found.own) == pytest.approx((0.75, 0.45), abs=1e-5)
    assert found.records == 7
    assert number_of(recovered) == 12


def test_the_longest_pause_is_judged_and_the_ratio_is_of_the_time_since_the_assignment() -> None:
    ours = [Pause(3, -0.2, 0.2, 0.1, 0.1), Pause(3, 0.7, 0.2, 0.1, 0.1)]
    found = finding(1000, {WITH_STANDBY: ours, WITHOUT: [Pause(900, 0.1, 0.2, 3.7, 0.1)]})
    with_one, without = found.lines
    assert with_one.met is False
    assert with_one.figures["longest"] == "1,100 ms"
    assert without.ratio == pytest.approx(10)
    assert finding(1000, {WITH_STANDBY: ours[:1]}).lines[0].met is True


def test_a_partition_is_at_work_when_a_message_sent_after_the_kill_has_come_through() -> None:
    probe = Probe(2, 0.1)
    probe.trips = [Trip(0, 9.0, 5.0), Trip(0, 10.5, 6.0), Trip(0, 10.1, 7.0), Trip(1, 9.9, 0.2)]
    assert probe.first_end(10.0) == {0: 16.5}
