from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from afterword.recalling.times import asked_time
from afterword.streams.language import words

NOW = datetime(2024, 6, 12, 23, 30, tzinfo=UTC)


def day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("query", "begin", "end"),
    [
        ("What did I cook in May 2023?", "2023-05-01", "2023-06-03"),
        ("What did we talk about last week?", "2024-06-03", "2024-06-12"),
        ("Was haben wir gestern besprochen?", "2024-06-11", "2024-06-14"),
        ("Who came on 2024-02-29?", "2024-02-29", "2024-03-03"),
        ("What happened in 2022?", "2022-01-01", "2023-01-03"),
    ],
)
def test_a_query_may_name_a_time(query: str, begin: str, end: str) -> None:
    asked = asked_time(query, NOW)
    assert asked is not None
    assert (asked.begin, asked.end) == (day(begin), day(end))


@pytest.mark.parametrize("query", ["", "Which boat did I buy?", "May I ask you something?", "Who wrote in 9999?"])
def test_others_name_none(query: str) -> None:
    assert asked_time(query, NOW) is None


@pytest.mark.parametrize(
    ("query", "is_over"),
    [
        ("Who came in May 2023?", True),
        ("Who came yesterday?", True),
        ("Who comes today?", False),
        ("Who comes next month?", False),
        ("Where do we spend the summer?", False),
        ("What happened in 2022?", True),
    ],
)
def test_a_time_is_over_when_its_last_day_is(query: str, is_over: bool) -> None:
    asked = asked_time(query, NOW)
    assert asked is not None
    assert asked.is_over is is_over


def test_the_end_of_the_calendar_is_no_error() -> None:
    assert asked_time("What is today?", datetime(9999, 12, 31, tzinfo=UTC)) is None


def test_days_are_those_of_the_zone() -> None:
    asked = asked_time("What did I say yesterday?", NOW, ZoneInfo("Europe/Berlin"))
    assert asked is not None
    assert asked.begin == datetime(2024, 6, 11, 22, tzinfo=UTC)  # it is the 13th there


def test_an_episode_meets_a_time_that_it_shares_a_moment_with() -> None:
    asked = asked_time("in May 2023", NOW)
    assert asked is not None
    assert asked.meets(day("2023-04-30"), day("2023-05-01"))
    assert asked.meets(day("2023-01-01"), day("2024-01-01"))
    assert not asked.meets(day("2023-04-01"), day("2023-04-30"))
    assert not asked.meets(day("2023-06-03"), day("2023-06-04"))


def test_what_is_said_besides_the_time_is_the_subject() -> None:
    for query, rest in (
        ("Who married in May 2023?", ["who", "married", "in"]),
        ("last week", ["last", "week"]),
        ("Where is it warm in summer?", ["where", "is", "it", "warm", "in", "summer"]),
    ):
        asked = asked_time(query, NOW)
        assert asked is None or [word for word in words(asked.rest) if word != "in"] == [w for w in rest if w != "in"]


def test_a_text_names_a_time_in_words_or_with_a_year() -> None:
    asked = asked_time("Where is the wedding in May 2024?", NOW)
    assert asked is not None
    for text in ("It is in May.", "On 3 May 2024.", "Next month we marry."):
        assert asked.is_named(text, day("2024-04-20")), text
    for text in ("It may be next year.", "In May 2023.", "In June.", "Yesterday."):
        assert not asked.is_named(text, day("2024-04-20")), text


@pytest.mark.parametrize(
    ("moment", "zone"),
    [
        (datetime(9999, 12, 31, 23, 59, tzinfo=UTC), "Asia/Tokyo"),
        (datetime(1, 1, 1, tzinfo=UTC), "America/New_York"),
    ],
)
def test_a_message_of_the_first_or_the_last_day_of_all_stops_no_search(moment: datetime, zone: str) -> None:
    asked = asked_time("Where is the wedding in May 2024?", NOW, ZoneInfo(zone))
    assert asked is not None
    assert not asked.is_named("It is tomorrow.", moment)
