"""Dates and times of summaries, against the times of the messages and what their words make of them."""

import tomllib
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from afterword_text.gate import Evidence, Grounding, ground
from tests.rows import with_rows

MONDAY = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
SAID = "I finally signed up for the pottery class, and I love it."

DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MONTHS, FORMATS, OF_MONTHS = DATA["MONTHS"], DATA["FORMATS"], DATA["OF_MONTHS"]
WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def ordinal(day: int) -> str:
    return f"{day}{'th' if 10 < day < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10, 'th')}"


days = st.dates(date(1990, 1, 1), date(2060, 12, 31))


def written(formats: dict[str, tuple[str, str]], name: str, day: date) -> tuple[str, str]:
    """Write a sentence with the day; returns it with its language."""
    language, form = formats[name]
    month = MONTHS.get(language, MONTHS["en"]).split()[day.month - 1]
    return language, form.format(
        d=day.day,
        o=ordinal(day.day),
        n=day.month,
        m=month,
        s=month[:3],
        y=day.year,
        z=f"{day.year % 100:02}",
        w=WEEKDAYS[day.weekday()],
    )


def checked(summary: str, said: str = SAID, at: datetime = MONDAY, language: str = "en") -> Grounding:
    return ground([summary], Evidence(said, language, [at]), language)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=12)
@given(day=days)
def test_messages_day_is_evidence_in_any_spelling(name: str, day: date) -> None:
    language, summary = written(FORMATS, name, day)
    at = MONDAY.replace(year=day.year, month=day.month, day=day.day)
    assert checked(summary, at=at, language=language).unsupported == ()


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=12)
@given(day=days, other=days)
def test_day_far_from_the_messages_is_refused(name: str, day: date, other: date) -> None:
    language, form = FORMATS[name]
    has_year = "{y}" in form or "{z}" in form
    other = other.replace(year=other.year if has_year else day.year, day=min(other.day, 28))
    swapped = [other] if other.day > 12 else [other, date(other.year, other.day, other.month)]
    assume(all(abs(each.replace(year=each.year + years) - day).days > 61 for each in swapped for years in (-1, 0, 1)))
    language, summary = written(FORMATS, name, other)
    at = MONDAY.replace(year=day.year, month=day.month, day=day.day)
    assert checked(summary, at=at, language=language).wrong_figure


@pytest.mark.parametrize("name", OF_MONTHS)
@settings(max_examples=12)
@given(day=days, months=st.integers(3, 100))
def test_month_far_from_the_messages_is_refused(name: str, day: date, months: int) -> None:
    language, summary = written(OF_MONTHS, name, day)
    at = MONDAY.replace(year=day.year, month=day.month, day=day.day)
    assert checked(summary, at=at, language=language).unsupported == ()
    later = day.year * 12 + day.month - 1 + months
    language, summary = written(OF_MONTHS, name, date(later // 12, later % 12 + 1, 1))
    assert checked(summary, at=at, language=language).wrong_figure


@with_rows
def test_parts_of_the_time_are_evidence(right: str) -> None:
    assert checked(right) == Grounding(1.0, (), wrong_figure=False)


@with_rows
def test_other_parts_of_the_time_are_not(wrong: str) -> None:
    assert checked(wrong).share < 1


@with_rows
def test_day_moved_to_another_month_is_unsupported(language: str, said: str, summary: str) -> None:
    assert checked(summary, said, language=language).wrong_figure
    assert not checked(summary, SAID, language=language).wrong_figure


@with_rows
def test_relative_words_allow_their_date(language: str, said: str, summary: str) -> None:
    assert checked(summary, said, language=language).unsupported == ()
    assert checked(summary, SAID, MONDAY + timedelta(days=40, weeks=200), language).unsupported != ()


def test_every_message_counts_with_its_own_day() -> None:
    evidence = Evidence("hello\nI went yesterday", "en", [MONDAY, MONDAY + timedelta(days=300)])
    assert not ground(["She went on 2 March 2024."], evidence, "en").unsupported
    assert ground(["She went on 7 July 2024."], evidence, "en").wrong_figure


def test_message_time_is_compared_in_its_own_zone() -> None:
    tokyo = datetime.fromisoformat("2023-05-09T01:30:00+09:00")
    assert not checked("She wrote on 9 May 2023 at 1:30 am.", at=tokyo).unsupported
    assert checked("She wrote on 9 May 2023 at 4:30 pm.", at=tokyo).wrong_figure
