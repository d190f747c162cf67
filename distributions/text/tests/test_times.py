"""Times that questions name, in words and in digits."""

from datetime import UTC, date, datetime
from time import thread_time
from zoneinfo import ZoneInfo

import pytest

from afterword_text.language import words
from afterword_text.times import MOST_CHARACTERS, Period, TimeAlone, asked_time, time_alone
from tests.rows import with_rows

NOW = datetime(2026, 3, 31, 15, tzinfo=UTC)
"""A Tuesday."""


def days(question: str, now: datetime = NOW) -> Period | None:
    asked = asked_time(question, now)
    return asked.days if asked else None


def period(text: str) -> Period:
    """Read "2026-03-01" or "2026-03-01 2026-03-10"."""
    ends = [date.fromisoformat(end) for end in text.split()]
    return Period(ends[0], ends[-1])


@with_rows
def test_date_without_year_is_its_last_occurrence(question: str, expected: str) -> None:
    assert days(question) == period(expected)


@with_rows
def test_relative_days_count_from_today(question: str, expected: str) -> None:
    assert days(question) == period(expected)


@with_rows
def test_weekday_beside_a_week_is_a_day_of_it(question: str, expected: str) -> None:
    assert days(question) == period(expected)


@with_rows
def test_time_since_a_date_ends_today(question: str, expected: str) -> None:
    assert days(question) == period(expected)


@with_rows
def test_ordinary_words_and_numbers_name_no_time(question: str) -> None:
    assert days(question) is None


@with_rows
def test_ambiguous_time_is_ignored(question: str) -> None:
    assert days(question) is None


def test_end_of_the_calendar_is_no_error() -> None:
    assert asked_time("What is today?", datetime(9999, 12, 31, tzinfo=UTC)) is None
    assert asked_time("What did I say a year ago?", datetime(1, 1, 1, tzinfo=UTC)) is None


def test_two_days_of_grace_follow_an_asked_time() -> None:
    asked = asked_time("What did I cook in May 2023?", NOW)
    assert asked is not None
    assert (asked.begin, asked.end) == (datetime(2023, 5, 1, tzinfo=UTC), datetime(2023, 6, 3, tzinfo=UTC))


def test_asked_days_begin_at_midnight_of_the_zone() -> None:
    asked = asked_time(
        "What did I say yesterday?", datetime(2024, 6, 12, 23, 30, tzinfo=UTC), ZoneInfo("Europe/Berlin")
    )
    assert asked is not None
    assert asked.begin == datetime(2024, 6, 11, 22, tzinfo=UTC)  # it is the 13th there


def test_episode_that_overlaps_a_time_matches_it() -> None:
    asked = asked_time("in May 2023", NOW)
    assert asked is not None
    moments = [
        datetime.fromisoformat(f"{day}T00:00Z") for day in ("2023-04-30", "2023-05-01", "2023-06-03", "2023-06-04")
    ]
    assert asked.meets(moments[0], moments[1])
    assert asked.meets(datetime(2023, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC))
    assert not asked.meets(datetime(2023, 4, 1, tzinfo=UTC), moments[0])
    assert not asked.meets(moments[2], moments[3])


@with_rows
def test_words_besides_the_time_are_the_subject(question: str, subject: list[str]) -> None:
    asked = asked_time(question, NOW)
    assert asked is not None
    assert words(asked.rest) == subject


@with_rows
def test_number_of_a_day_may_be_a_word(question: str, number: str, is_doubtful: bool) -> None:
    asked = asked_time(question, NOW)
    assert asked is not None
    assert (asked.number, asked.is_doubtful) == (number, is_doubtful)


def test_asked_month_matches_its_names_in_searches() -> None:
    asked = asked_time("Wo war die Hochzeit im August 2024?", NOW)
    assert asked is not None
    assert {"august", "aug"} <= asked.month
    assert asked.is_near(datetime(2023, 9, 1, tzinfo=UTC))
    assert not asked.is_near(datetime(2023, 7, 1, tzinfo=UTC))
    several = asked_time("since January 1", NOW)
    assert several is not None
    assert not several.month


def alone(question: str) -> TimeAlone | None:
    return time_alone(question, asked_time(question, NOW))


@with_rows
def test_question_about_talk_asks_for_a_time_alone(order: str, question: str) -> None:
    assert alone(question) == (order, True)


@with_rows
def test_question_with_a_subject_asks_for_more(question: str) -> None:
    assert alone(question) is None


@with_rows
def test_stop_words_may_have_a_meaning_of_their_own(question: str) -> None:
    assert alone(question) == ("newest", False)


@pytest.mark.parametrize("words_of_dates", ["1 may ", "in a week ago ", "3 days ago ", "Mai 3 vor ", "monday - "])
def test_question_of_many_dates_takes_no_longer(words_of_dates: str) -> None:
    asked_time(words_of_dates, NOW)  # loads the words of its language
    began = thread_time()
    asked_time(words_of_dates * MOST_CHARACTERS, NOW)
    assert thread_time() - began < 3  # a few milliseconds


@with_rows
def test_weekday_before_last_is_a_week_earlier(question: str, expected: str) -> None:
    assert days(question) == period(expected)


def test_month_of_question_about_the_future_is_next() -> None:
    asked = asked_time("Where am I going in May?", datetime(2026, 11, 29, tzinfo=UTC))
    assert asked
    assert asked.is_ahead
    assert asked.days.first == date(2027, 5, 1)
