"""The lag of a partition, estimated without reading the unread records."""

from faust_eos.metrics import Backlog, Work

T = 1_000_000
"""Milliseconds since 1970."""


def test_nothing_unread_and_nothing_in_flight_is_no_lag() -> None:
    assert Backlog().look(Work(9, None, T - 5000), position=10, end=10, now_ms=T) == (0, 0.0)


def test_record_in_flight_is_as_old_as_its_timestamp() -> None:
    work = Work(4, in_hand_ms=T - 2500)
    assert Backlog().look(work, position=10, end=10, now_ms=T) == (6, 2.5)


def test_unread_records_are_no_older_than_the_last_finished() -> None:
    backlog = Backlog()
    backlog.look(Work(5), position=5, end=5, now_ms=T - 60_000)
    assert backlog.look(Work(8, done_ms=T - 3000), position=8, end=20, now_ms=T) == (12, 3.0)


def test_record_after_a_long_silence_has_no_lag() -> None:
    backlog = Backlog()
    backlog.look(Work(5, done_ms=T - 9_000_000), position=5, end=5, now_ms=T - 2000)
    assert backlog.look(Work(5, done_ms=T - 9_000_000), position=5, end=6, now_ms=T) == (1, 2.0)


def test_lag_present_at_the_start_grows_from_the_start() -> None:
    backlog = Backlog()
    assert backlog.look(Work(), position=5, end=100, now_ms=T) == (95, 0.0)
    assert backlog.look(Work(), position=5, end=100, now_ms=T + 4000) == (95, 4.0)


def test_group_offset_counts_where_no_offset_is_known() -> None:
    assert Backlog().look(Work(), position=40, end=100, now_ms=T)[0] == 60


def test_clock_behind_the_producers_gives_no_negative_age() -> None:
    assert Backlog().look(Work(4, in_hand_ms=T + 9000), position=10, end=10, now_ms=T) == (6, 0.0)
