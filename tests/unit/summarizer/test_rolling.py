from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.stores.episodes import RollingRow
from afterword.streams.summarizer.rolling import longest_text, next_row
from afterword.streams.tokens import count_tokens
from tests.samples import NOON, a_summary

MAX_TOKENS = 5
SHORT, LONG = "So far.", "The flight to Rome was booked for Monday."
ROW = RollingRow("c1", 2, SHORT, count_tokens(SHORT), first_ordinal=2, last_ordinal=3, updated_at=NOON)


def test_the_first_episode_begins_the_first_row() -> None:
    summary = a_summary(4, rolling_summary=LONG)
    row = RollingRow("c1", 1, LONG, count_tokens(LONG), first_ordinal=4, last_ordinal=4, updated_at=summary.created_at)
    assert next_row(None, summary, MAX_TOKENS) == row


def test_a_row_under_the_limit_is_replaced_and_keeps_where_it_began() -> None:
    summary = a_summary(4, rolling_summary=LONG)
    expected = replace(ROW, content=LONG, token_count=count_tokens(LONG), last_ordinal=4, updated_at=summary.created_at)
    assert next_row(ROW, summary, MAX_TOKENS) == expected


def test_past_the_limit_a_new_row_begins() -> None:
    full = replace(ROW, token_count=MAX_TOKENS)
    row = next_row(full, a_summary(4, rolling_summary=SHORT), MAX_TOKENS)
    assert row is not None
    assert (row.row, row.first_ordinal, row.last_ordinal, row.content) == (3, 4, 4, SHORT)


def test_a_text_may_pass_the_limit_while_its_row_goes_on() -> None:
    assert longest_text(None, 800) == longest_text(replace(ROW, token_count=799), 800) == 1000


def test_a_text_that_begins_a_new_row_leaves_it_room_to_grow() -> None:
    assert longest_text(replace(ROW, token_count=800), 800) == longest_text(replace(ROW, token_count=1000), 800) == 600


def test_an_ordinal_that_is_covered_changes_nothing() -> None:
    for ordinal in (1, 2, 3):
        assert next_row(ROW, a_summary(ordinal), MAX_TOKENS) is None


@given(st.lists(st.tuples(st.integers(1, 8), st.sampled_from([SHORT, LONG])), max_size=30))
def test_whatever_is_replayed_rows_cover_ordinals_once_and_in_order(events: list[tuple[int, str]]) -> None:
    rows: list[RollingRow] = []
    for ordinal, text in events:
        row = next_row(rows[-1] if rows else None, a_summary(ordinal, rolling_summary=text), MAX_TOKENS)
        if row is not None:
            rows[row.row - 1 :] = [row]
            assert row.content == text
    assert [row.row for row in rows] == list(range(1, len(rows) + 1))
    assert all(row.token_count >= MAX_TOKENS for row in rows[:-1])
    bounds = [bound for row in rows for bound in (row.first_ordinal, row.last_ordinal)]
    assert bounds == sorted(bounds)
    assert all(before.last_ordinal < after.first_ordinal for before, after in pairwise(rows))
    assert (rows[-1].last_ordinal if rows else 0) == max((ordinal for ordinal, _ in events), default=0)
