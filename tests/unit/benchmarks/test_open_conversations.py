"""Rows that are written directly are those that the segmenter makes of the same messages."""

import pytest

from afterword.streams.segmenter.state import DEADLINE_BYTES, deadline_of, parse_key
from benchmarks.memory import recovered
from benchmarks.open_conversations import Record, Rewriter, deadlines, names, segmented
from benchmarks.state import message

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize("number", [0, 7, 999_999])
def test_they_differ_from_the_segmenters_own_in_the_deadline_alone(number: int) -> None:
    conversations, messages = segmented(Record(*message(*names(number), 0), NOW_MS), NOW_MS)
    written = Rewriter(NOW_MS).conversation(number, NOW_MS + 5)
    ((key, row),) = conversations.items()
    assert written.key == key
    assert written.row[DEADLINE_BYTES:] == row[DEADLINE_BYTES:]
    assert deadline_of(written.row) == NOW_MS + 5
    assert dict(written.messages) == messages
    assert {parse_key(key).kind for key, _ in written.messages} == {"body", "seen"}


def test_deadlines_are_an_hour_away_and_spread_over_another() -> None:
    hour = 3_600_000
    found = list(deadlines(4, NOW_MS))
    assert found == [NOW_MS + hour + quarter * hour // 4 for quarter in range(4)]


def test_of_a_log_only_the_lines_about_recoveries_are_read() -> None:
    log = ["starting", '{"event": "recovered", "records": 3}', '{"event": "other"}']
    assert recovered(log) == [{"event": "recovered", "records": 3}]
