"""Dates and times of summaries, against the times of the messages and what their words make of them."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from afterword_text.gate import Evidence, Grounding, ground
from tests.rows import with_rows

MONDAY = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
SAID = "I finally signed up for the pottery class, and I love it."

MONTHS = {
    "en": "January February March April May June July August September October November December",
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "pt": "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    "nl": "januari februari maart april mei juni juli augustus september oktober november december",
    "da": "januar februar marts april maj juni juli august september oktober november december",
}
WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def ordinal(day: int) -> str:
    return f"{day}{'th' if 10 < day < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10, 'th')}"


FORMATS: dict[str, tuple[str, str]] = {
    "day month year": ("en", "On {d} {m} {y} she signed up."),
    "ordinal day": ("en", "She signed up on the {o} of {m} {y}."),
    "day month, comma": ("en", "On {d} {m}, {y}, she signed up."),
    "month day year": ("en", "She signed up on {m} {d}, {y}."),
    "month ordinal year": ("en", "{m} {o}, {y}: she signed up."),
    "month ordinal of year": ("en", "She signed up on {m} {o} of {y}."),
    "month the ordinal": ("en", "She signed up on {m} the {o}."),
    "day month": ("en", "She signed up on {d} {m}."),
    "month day": ("en", "She signed up on {m} {d}."),
    "short month": ("en", "She signed up on {d} {s} {y}."),
    "short month with a point": ("en", "She signed up on {s}. {d}, {y}."),
    "short month with dashes": ("en", "She signed up on {d:02}-{s}-{y}."),
    "weekday": ("en", "On {w}, {d} {m} {y}, she signed up."),
    "in brackets": ("en", "She signed up ({d} {m} {y})."),
    "with a time": ("en", "On {d} {m} {y} at 1:56 pm she signed up."),
    "iso": ("en", "On {y}-{n:02}-{d:02} she signed up."),
    "iso with a time": ("en", "On {y}-{n:02}-{d:02} 13:56 she signed up."),
    "timestamp": ("en", "At {y}-{n:02}-{d:02}T13:56:00Z she signed up."),
    "slashes, year first": ("en", "On {y}/{n:02}/{d:02} she signed up."),
    "points, year first": ("en", "On {y}.{n:02}.{d:02} she signed up."),
    "slashes, day first": ("en", "On {d}/{n}/{y} she signed up."),
    "slashes, month first": ("en", "On {n}/{d}/{y} she signed up."),
    "slashes, short year": ("en", "On {n:02}/{d:02}/{z} she signed up."),
    "dashes, day first": ("en", "On {d:02}-{n:02}-{y} she signed up."),
    "points, day first": ("de", "Am {d}.{n}.{y} meldete sie sich an."),
    "points, short year": ("de", "Am {d:02}.{n:02}.{z} meldete sie sich an."),
    "German": ("de", "Am {d}. {m} {y} meldete sie sich an."),
    "German without a year": ("de", "Sie meldete sich am {d}. {m} an."),
    "German with a time": ("de", "Am {d}. {m} {y} um 13:56 Uhr meldete sie sich an."),
    "German with a time and a point": ("de", "Am {d}. {m} {y} um 13.56 Uhr meldete sie sich an."),
    "French": ("fr", "Le {d} {m} {y}, elle s'est inscrite."),
    "French with a time": ("fr", "Le {d} {m} {y} à 13h56, elle s'est inscrite."),
    "Spanish": ("es", "El {d} de {m} de {y} se inscribió."),
    "Spanish del": ("es", "El {d} de {m} del {y} se inscribió."),
    "Spanish without a year": ("es", "Se inscribió el {d} de {m}."),
    "Portuguese": ("pt", "No dia {d} de {m} de {y}, ela se inscreveu."),
    "Italian": ("it", "Il {d} {m} {y} si è iscritta."),
    "Dutch": ("nl", "Op {d} {m} {y} schreef ze zich in."),
    "Danish": ("da", "Den {d}. {m} {y} meldte hun sig til."),
    "Chinese": ("zh", "她在{y}年{n}月{d}日报名。"),
    "Japanese": ("ja", "{y}年{n}月{d}日に申し込みました。"),
}
OF_MONTHS: dict[str, tuple[str, str]] = {
    "month year": ("en", "In {m} {y} she signed up."),
    "month, year": ("en", "She signed up in {m}, {y}."),
    "month of year": ("en", "She signed up in {m} of {y}."),
    "early month": ("en", "In early {m} {y} she signed up."),
    "short month year": ("en", "Since {s} {y} she has a class."),
    "German month": ("de", "Im {m} {y} meldete sie sich an."),
    "French month": ("fr", "En {m} {y}, elle s'est inscrite."),
    "Spanish month": ("es", "En {m} de {y} se inscribió."),
    "Chinese month": ("zh", "她在{y}年{n}月报名。"),
}
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


@pytest.mark.parametrize(
    "right",
    ["In May she signed up.", "It was in 2023.", "It was a Monday.", "She wrote at 1:56 pm.", "She wrote at 1:56PM.",
     "She wrote at 13:56.", "She wrote on 8 May.", "She wrote on Monday 8 May 2023 at 1:56 p.m.",
     "They hike on 13–14 May 2023.", "They hike on May 13-14, 2023."],
)  # fmt: skip
def test_parts_of_the_time_are_evidence(right: str) -> None:
    assert checked(right) == Grounding(1.0, (), wrong_figure=False)


@pytest.mark.parametrize(
    "wrong",
    ["In November she signed up.", "It was in 2021.", "It was a Thursday.", "She wrote at 1:57 pm.",
     "She wrote at 1:56 am.", "She wrote at 14:56.", "She wrote on 9 December.",
     "She has 8 classes in 2025.", "They hike on 13–14 December."],
)  # fmt: skip
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
