"""Days that a question asks about."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.dates import (
    CACHED_CHARACTERS,
    DATE,
    MONTH_OF_YEAR,
    SPOKEN,
    DatePattern,
    Period,
    asked_period,
    named_periods,
    spoken_dates,
)

TUESDAY = date(2023, 5, 9)


def asked(query: str, language: str = "en") -> tuple[str, str] | None:
    found = asked_period(query, TUESDAY, [language])
    return found and (found.first.isoformat(), found.last.isoformat())


@pytest.mark.parametrize(
    ("language", "query", "first", "last"),
    [
        ("en", "What did we decide in May 2022?", "2022-05-01", "2022-05-31"),
        ("en", "What did I do on 7 March 2023?", "2023-03-07", "2023-03-07"),
        ("en", "What happened in 2021?", "2021-01-01", "2021-12-31"),
        ("en", "What did I order last week?", "2023-05-01", "2023-05-07"),
        ("en", "where was i last weekend", "2023-05-05", "2023-05-07"),
        ("en", "Who called yesterday?", "2023-05-08", "2023-05-08"),
        ("en", "What did she say on Friday?", "2023-05-05", "2023-05-05"),
        ("en", "What did she say today?", "2023-05-09", "2023-05-09"),
        ("en", "What did we plan in December?", "2022-12-01", "2022-12-31"),
        ("en", "What was it on December 12?", "2022-12-12", "2022-12-12"),
        ("en", "What did we talk about two weeks ago?", "2023-04-25", "2023-04-25"),
        ("en", "What did we plan last month?", "2023-04-01", "2023-04-30"),
        ("en", "What is due tomorrow?", "2023-05-10", "2023-05-10"),
        ("en", "When in 2021 did we say that it is due tomorrow?", "2021-01-01", "2021-12-31"),
        ("de", "Was habe ich letzte Woche bestellt?", "2023-05-01", "2023-05-07"),
        ("fr", "Qu'ai-je commandé la semaine dernière ?", "2023-05-01", "2023-05-07"),
        ("es", "¿Qué pedí la semana pasada?", "2023-05-01", "2023-05-07"),
        ("pt", "O que pedi na semana passada?", "2023-05-01", "2023-05-07"),
        ("it", "Che cosa ho ordinato la settimana scorsa?", "2023-05-01", "2023-05-07"),
        ("nl", "Wat heb ik vorige week besteld?", "2023-05-01", "2023-05-07"),
        ("da", "Hvad bestilte jeg sidste uge?", "2023-05-01", "2023-05-07"),
        ("de", "Was habe ich vor drei Tagen gesagt?", "2023-05-06", "2023-05-06"),
        ("de", "Was war vor einer Woche?", "2023-05-02", "2023-05-02"),
        ("fr", "Qu'ai-je dit il y a trois jours ?", "2023-05-06", "2023-05-06"),
        ("es", "¿Qué dije hace tres días?", "2023-05-06", "2023-05-06"),
        ("pt", "O que eu disse há três dias?", "2023-05-06", "2023-05-06"),
        ("it", "Che cosa ho detto tre giorni fa?", "2023-05-06", "2023-05-06"),
        ("nl", "Wat zei ik drie dagen geleden?", "2023-05-06", "2023-05-06"),
        ("da", "Hvad sagde jeg for tre dage siden?", "2023-05-06", "2023-05-06"),
        ("es", "¿Qué decidimos el mes pasado?", "2023-04-01", "2023-04-30"),
        ("es", "¿Qué decidimos el año pasado?", "2022-01-01", "2022-12-31"),
        ("en", "What did I say day before yesterday?", "2023-05-07", "2023-05-07"),
        ("en", "What did we plan the week before last?", "2023-04-24", "2023-04-30"),
        ("en", "Where was I the weekend before last?", "2023-04-28", "2023-04-30"),
        ("en", "Who called on the Friday before last?", "2023-04-28", "2023-04-28"),
        ("en", "What did we pay the month before last?", "2023-03-01", "2023-03-31"),
        ("en", "What did I say on 29 February?", "2020-02-29", "2020-02-29"),
    ],
)
def test_a_question_asks_about_days(language: str, query: str, first: str, last: str) -> None:
    assert asked(query, language) == (first, last)


@pytest.mark.parametrize(
    "query", ["Where did Ada move to?", "May I ask again?", "Who has lived here for five years?", "order 2021", "", "?"]
)
def test_a_question_without_days_asks_about_none(query: str) -> None:
    assert asked(query) is None


@pytest.mark.parametrize(
    ("language", "query"),
    [
        ("de", "Wer wohnt seit fünf Jahren hier?"),
        ("fr", "Qui habite ici depuis cinq ans ?"),
        ("es", "¿Quién vive aquí desde hace cinco años?"),
    ],
)
def test_a_length_of_time_is_no_day(language: str, query: str) -> None:
    assert asked(query, language) is None


@given(st.text(max_size=200), st.dates(), st.sampled_from(sorted(SPOKEN)))
def test_any_text_can_be_asked_on_any_day(query: str, today: date, language: str) -> None:
    found = asked_period(query, today, [language])
    assert found is None or found.first <= found.last


LOOKALIKES = ("i", "ı"), ("i", "İ"), ("s", "ſ"), ("k", "\u212a")
"""Letters, and others that `re.IGNORECASE` takes for them."""
SPOKEN_BY_LANGUAGE = [
    ("en", "last friday"),
    ("en", "on friday"),
    ("en", "since april"),
    ("en", "yesterday"),
    ("en", "six weeks ago"),
    ("de", "letzten dienstag"),
    ("fr", "il y a six mois"),
    ("es", "el viernes"),
    ("pt", "o mês que vem"),
    ("it", "lunedì scorso"),
    ("nl", "zes weken geleden"),
    ("da", "i morgen"),
]


@pytest.mark.parametrize(("letter", "other"), LOOKALIKES)
@pytest.mark.parametrize(("language", "text"), SPOKEN_BY_LANGUAGE)
def test_letters_that_the_patterns_take_for_others_are_read_as_those(
    language: str, text: str, letter: str, other: str
) -> None:
    assert named_periods(text.replace(letter, other), TUESDAY, [language]) == named_periods(text, TUESDAY, [language])


NUMBERED = st.tuples(st.integers(0, 999), st.sampled_from(["days", "weeks", "weekends", "months", "years"]))


@given(NUMBERED, st.dates(), st.sampled_from(["{} ago", "in {}", "for {}", "{} later"]))
def test_no_number_of_anything_leads_out_of_the_calendar(number: tuple[int, str], today: date, form: str) -> None:
    text = form.format(f"{number[0]} {number[1]}")
    assert all(isinstance(period, Period) for period in named_periods(text, today, ["en"]))


PATTERNS = [DATE, MONTH_OF_YEAR, *map(spoken_dates, sorted(SPOKEN))]


@given(st.data(), st.sampled_from(PATTERNS), st.lists(st.text(max_size=5) | st.sampled_from(" .,-"), max_size=4))
def test_a_text_that_is_not_searched_has_no_date(data: st.DataObject, dates: DatePattern, around: list[str]) -> None:
    place = data.draw(st.integers(0, len(around)))
    written = data.draw(st.from_regex(dates.whole, fullmatch=True))
    text = "".join([*around[:place], written, *around[place:]])
    assert [found.span() for found in dates.finditer(text)] == [found.span() for found in dates.whole.finditer(text)]
    assert dates.sub("", text) == dates.whole.sub("", text)


def test_a_text_without_dates_is_not_searched() -> None:
    dates = DatePattern(r"\bmay \d\b", needed=["may"], other="!")
    assert [found[0] for text in ("may 5", "MAY 5", "maybe 5 may be") for found in dates.finditer(text)] == [
        "may 5",
        "MAY 5",
    ]
    assert [found[0] for found in dates.finditer(f"{'-' * CACHED_CHARACTERS} may 5")] == ["may 5"]
    unsearched = DatePattern(r"\d", needed=["may"], other="!")
    assert (list(unsearched.finditer("5")), unsearched.sub("", "5"), unsearched.sub("", "5!")) == ([], "5", "!")
