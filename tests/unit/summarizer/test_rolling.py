from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.stores.episodes import RollingRow
from afterword.streams.summarizer.conversations import History
from afterword.streams.summarizer.summary import SummaryRules
from tests.samples import NOON, a_cause, a_summary

RULES = SummaryRules(rolling_max_tokens=5)
SHORT, LONG = "So far.", "The flight to Rome was booked for Monday."
ROW = RollingRow(
    "c1",
    2,
    7,
    a_cause(),
    SHORT,
    is_complete=False,
    first_ordinal=2,
    last_ordinal=3,
    inputs=((3, 1),),
    updated_at=NOON,
)


def after(row: RollingRow | None, ordinal: int, text: str) -> RollingRow:
    return History(RULES, row, (), None).next_row("c1", a_summary(ordinal, revision=2), text, a_cause(9))


def test_first_episode_begins_the_first_row() -> None:
    row = after(None, 4, LONG)
    assert (row.row, row.revision, row.content, row.first_ordinal, row.last_ordinal) == (1, 1, LONG, 1, 4)
    assert (row.inputs, row.cause, row.is_complete) == (((4, 2),), a_cause(9), True)


def test_row_under_the_limit_continues() -> None:
    row = after(ROW, 4, LONG)
    assert (row.row, row.revision, row.content, row.first_ordinal, row.last_ordinal) == (2, 8, LONG, 2, 4)
    assert row.inputs == ((3, 1), (4, 2))


def test_row_past_the_limit_is_followed_by_another() -> None:
    full = after(ROW, 4, LONG)
    history = History(RULES, full, (), None)
    assert (history.text, history.continued) == ("", None)
    row = history.next_row("c1", a_summary(5), SHORT, a_cause())
    assert (row.row, row.first_ordinal, row.last_ordinal, row.inputs) == (3, 5, 5, ((5, 1),))


def test_rows_writer_decides_whether_it_is_complete() -> None:
    """Otherwise two workers with different limits could put one episode into two rows."""
    assert after(replace(ROW, content=LONG), 4, SHORT).row == 2
    assert after(replace(ROW, is_complete=True), 4, SHORT).row == 3


@given(st.lists(st.sampled_from([SHORT, LONG]), max_size=30))
def test_rows_cover_every_ordinal_once_in_order(texts: list[str]) -> None:
    rows: list[RollingRow] = []
    for ordinal, text in enumerate(texts, 1):
        row = after(rows[-1] if rows else None, ordinal, text)
        rows[row.row - 1 :] = [row]
    assert [row.row for row in rows] == list(range(1, len(rows) + 1))
    assert all(row.is_complete for row in rows[:-1])
    assert all(before.last_ordinal + 1 == after.first_ordinal for before, after in pairwise(rows))
    assert [ordinal for row in rows for ordinal, _ in row.inputs] == list(range(1, len(texts) + 1))
