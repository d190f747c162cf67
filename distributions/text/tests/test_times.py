"""Times that questions name, in words and in digits."""

from datetime import UTC, date, datetime
from time import thread_time
from zoneinfo import ZoneInfo

import pytest

from afterword_text.language import words
from afterword_text.times import MOST_CHARACTERS, Period, TimeAlone, asked_time, time_alone

NOW = datetime(2026, 3, 31, 15, tzinfo=UTC)
"""A Tuesday."""


def days(question: str, now: datetime = NOW) -> Period | None:
    asked = asked_time(question, now)
    return asked.days if asked else None


def period(text: str) -> Period:
    """Read "2026-03-01" or "2026-03-01 2026-03-10"."""
    ends = [date.fromisoformat(end) for end in text.split()]
    return Period(ends[0], ends[-1])


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("what did I say on the 12th of June?", "2025-06-12"),
        ("What happened on June the 3rd?", "2025-06-03"),
        ("What did I plan on May 3, 2024?", "2024-05-03"),
        ("Was habe ich am 3. Mai gesagt?", "2025-05-03"),
        ("Qu'ai-je dit le 3 mai ?", "2025-05-03"),
        ("Qu’ai-je dit le 1er mars ?", "2026-03-01"),
        ("¿Qué dije el 20 de octubre?", "2025-10-20"),
        ("Che cosa ho detto il 3 maggio?", "2025-05-03"),
        ("O que eu disse no dia 3 de maio?", "2025-05-03"),
        ("Wat zei ik op de 3e mei?", "2025-05-03"),
        ("Hvad sagde jeg den 3. maj?", "2025-05-03"),
        ("Was habe ich am 3. April gesagt?", "2025-04-03"),
        ("Who came on 2024-02-29?", "2024-02-29"),
        ("Wer kam am 29.2.2024?", "2024-02-29"),
        ("2024年2月29日に何をしましたか", "2024-02-29"),
        ("What did I cook in May 2023?", "2023-05-01 2023-05-31"),
        ("Was habe ich im Mai gekocht?", "2025-05-01 2025-05-31"),
        ("What happened in 2022?", "2022-01-01 2022-12-31"),
        ("Who left on the twenty-first of September?", "2025-09-21"),
        ("What did I plant in May last year?", "2025-05-01 2025-05-31"),
        ("Was war am 1. Mai letzten Jahres?", "2025-05-01"),
        ("¿Qué hice el 20 de octubre del año pasado?", "2025-10-20"),
        ("Cosa ho detto la settimana scorsa, martedì?", "2026-03-24"),
        ("¿Qué pasó en 2022?", "2022-01-01 2022-12-31"),
        ("What did we discuss on the 26th?", "2026-03-26"),
        ("on the 31st", "2026-03-31"),
        ("Was habe ich am 26. gekocht?", "2026-03-26"),
        ("qu'est-ce que je t'ai dit le 26 ?", "2026-03-26"),
        ("¿Qué te dije el día 26?", "2026-03-26"),
        ("di cosa abbiamo parlato il 30?", "2026-03-30"),
        ("o que eu disse no dia 29?", "2026-03-29"),
        ("wat hebben we op de 26e besproken?", "2026-03-26"),
        ("hvor langt cyklede jeg den 26.?", "2026-03-26"),
        ("since the 20th", "2026-03-20 2026-03-31"),
        ("what happened the 24th?", "2026-03-24"),
        ("wann war ich am 12. beim Arzt?", "2026-03-12"),
        ("quanto ho speso l'8?", "2026-03-08"),
        ("o que te disse no dia 3 de manhã?", "2026-03-03"),
        ("o que conversamos no sábado, dia 14?", "2026-03-14"),
        ("hvad spiste jeg den 24. i haven?", "2026-03-24"),
        ("what is on the 3rd?", "2026-03-03"),
        ("What did I say on Monday the 9th?", "2026-03-09"),
        ("was ist am Donnerstag, dem 2.?", "2026-04-02"),
        ("jeudi 26, on a parlé de quoi ?", "2026-03-26"),
        ("Was haben wir am 26.11. besprochen?", "2025-11-26"),
        ("Wie schwer war ich am 5.3.?", "2026-03-05"),
        ("wie schwer war ich am 5.3.25?", "2025-03-05"),
        ("de quoi on a parlé le 5/3 ?", "2026-03-05"),
        ("Qu'ai-je dit le 03/05/2024 ?", "2024-05-03"),
        ("what did we discuss on 3/26?", "2026-03-26"),
        ("wat hebben we op 5-3 besproken?", "2026-03-05"),
        ("taxi 20/3", "2026-03-20"),
        ("taxi 20/3?", "2026-03-20"),
        ("taxi on 3/20 in Rome", "2026-03-20"),
        ("Was war am Di 3.?", "2026-03-03"),
        ("was war am di 3.?", "2026-03-03"),
        ("what did I eat Tue 3rd?", "2026-03-03"),
        ("dépenses du 26 mars au marché ?", "2026-03-26"),
    ],
)
def test_date_without_year_is_its_last_occurrence(question: str, expected: str) -> None:
    assert days(question) == period(expected)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Was haben wir gestern besprochen?", "2026-03-30"),
        ("What did I dream last night?", "2026-03-30"),
        ("Cosa ho fatto l'altro ieri?", "2026-03-29"),
        ("what did we say three days ago", "2026-03-28"),
        ("Qu'ai-je dit il y a trois jours ?", "2026-03-28"),
        ("¿Qué dije hace tres días?", "2026-03-28"),
        ("What did we talk about last week?", "2026-03-23 2026-03-29"),
        ("Worüber sprachen wir vergangene Woche?", "2026-03-23 2026-03-29"),
        ("¿De qué hablamos la última semana?", "2026-03-23 2026-03-29"),
        ("De quoi avons-nous parlé le mois dernier ?", "2026-02-01 2026-02-28"),
        ("What did I plant in March two years ago?", "2024-03-01 2024-03-31"),
        ("Where was I last weekend?", "2026-03-27 2026-03-29"),
        ("what did we say on Friday", "2026-03-27"),
        ("Was habe ich letzten Montag gesagt?", "2026-03-30"),
        ("What is planned for next month?", "2026-04-01 2026-04-30"),
        ("What did I say yesterday about next week?", "2026-03-30"),
        ("What did I do the day before yesterday?", "2026-03-29"),
        ("Was war im letzten Jahr?", "2025-01-01 2025-12-31"),
        ("Was war am Ende letzten Jahres?", "2025-01-01 2025-12-31"),
        ("What did I say on the 5th of last month?", "2026-02-01 2026-02-28"),
        ("hvad sagde jeg i forgårs?", "2026-03-29"),
        ("hvor langt cyklede jeg i torsdags?", "2026-03-26"),
        ("taxi on Weds", "2026-03-25"),
        ("Mein Chef wird am Freitag 60. Was koche ich?", "2026-03-27"),
        ("taxi on thu", "2026-03-26"),
        ("¿cuánto pagué de taxi antier?", "2026-03-29"),
        ("¿Qué comí antes de ayer?", "2026-03-29"),
        ("Was war vorvorgestern?", "2026-03-28"),
        ("taxi eergisteravond", "2026-03-29"),
        ("qu'ai-je mangé avant hier ?", "2026-03-29"),
        ("what came up the day before yesterday?", "2026-03-29"),
        ("what did we talk about two nights ago?", "2026-03-29"),
        ("what did we go over on Friday?", "2026-03-27"),
        ("hvad sagde jeg i aftes?", "2026-03-30"),
        ("Did I run the 5 km last month?", "2026-02-01 2026-02-28"),
    ],
)
def test_relative_days_count_from_today(question: str, expected: str) -> None:
    assert days(question) == period(expected)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("on Tuesday last week", "2026-03-24"),
        ("Wednesday two weeks ago", "2026-03-18"),
        ("am Montag letzter Woche", "2026-03-23"),
        ("tirsdag for to uger siden", "2026-03-17"),
        ("Tuesday the 3rd of March", "2026-03-03"),
    ],
)
def test_weekday_beside_a_week_is_a_day_of_it(question: str, expected: str) -> None:
    assert days(question) == period(expected)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("starting March 10", "2026-03-10 2026-03-31"),
        ("taxis since 20/3 in Rome", "2026-03-20 2026-03-31"),
        ("what did I eat since Monday", "2026-03-30 2026-03-31"),
        ("seit letztem Montag", "2026-03-30 2026-03-31"),
        ("depuis le 1er mars", "2026-03-01 2026-03-31"),
        ("da lunedì", "2026-03-30 2026-03-31"),
        ("desde el 1 de marzo", "2026-03-01 2026-03-31"),
        ("sinds maart", "2026-03-01 2026-03-31"),
    ],
)
def test_time_since_a_date_ends_today(question: str, expected: str) -> None:
    assert days(question) == period(expected)


@pytest.mark.parametrize(
    "question",
    [
        "",
        "Which boat did I buy?",
        "May I ask you something?",
        "What was the sun like to walk on a sat nav?",
        "Can we sit down?",
        "How often do I swim in a week?",
        "Do I work 5 days a week?",
        "I was told 5 people came in at 5 pm",
        "How did I get from 3 to 5 points?",
        "What is my address now?",
        "Who wrote in 9999?",
        "What is in room 2022?",
        "Wie war der 31.02.2024?",
        "what was on the 26th page?",
        "What is in room 26?",
        "Wer wohnt in Zimmer 26.?",
        "Was war am 26. Spieltag?",
        "qui habite le 26 avenue Foch ?",
        "quel est le premier que je t'ai cité ?",
        "wat staat er op de 26e verdieping?",
        "hvem bor på den 26. etage?",
        "¿el 26 por ciento de qué?",
        "le 26 % de quoi ?",
        "what was on the 32nd?",
        "was the 2nd attempt better than the 1st?",
        "Wie war der Kurs am 18.30?",
        "how much was it on 4.5?",
        "Is it available 24/7?",
        "Did I say 3/4 or 2-3?",
        "Which 5/16 wrench did I buy?",
        "Is the monitor a 16/9 one?",
        'Where is the 5/16" bolt?',
        "Where is the 7/16-inch bolt?",
        "Did I get 10/20 in the test?",
        "Who has the 24/12 shift?",
        "Was kosten die 12 denn?",
        "Waren es so 20?",
        "Wer sind die 3?",
        "Die 12 ist welche Wohnung?",
        "Kan man 12?",
        "Kostet die 5-3?",
    ],
)
def test_ordinary_words_and_numbers_name_no_time(question: str) -> None:
    assert days(question) is None


@pytest.mark.parametrize(
    "question",
    [
        "What did I say on 03/05/2024?",
        "what did we talk about on 3/5?",
        "what did I buy between the 3rd and the 10th?",
        "vom 20.3. bis zum 26.3.",
        "was war am 20. oder 21.?",
        "was war am 20.3. oder 21.3.?",
        "taxi 20/3 - 26/3?",
        "What did I eat up to March 10?",
        "du 20 mars au 26",
        "du 20 mars à Noël",
        "What did I do last winter?",
        "What did I cook in the last month?",
        "What did I read over the past year?",
        "Was habe ich in den letzten Wochen gegessen?",
        "Was habe ich in den letzten Monaten gegessen?",
        "Qu'ai-je mangé ces derniers mois ?",
        "¿Qué comí en las últimas semanas?",
        "¿Qué como los lunes?",
        "Cosa ho mangiato negli ultimi mesi?",
        "O que comi nos últimos meses?",
        "Wat at ik de afgelopen jaren?",
        "Hvad spiste jeg de sidste år?",
        "What did I eat since I moved in May?",
        "Was habe ich gegessen, bevor ich im Mai umgezogen bin?",
        "Qu'ai-je mangé avant de déménager en mai 2024 ?",
        "¿Qué comí desde que me mudé en mayo?",
        "What did I say over a year ago?",
        "Wat zei ik meer dan een jaar geleden?",
        "Qu'ai-je dit il y a un an et demi ?",
        "¿Qué dije hace un año y medio?",
        "What did I say on 3 March and on 5 March?",
        "What did I do the week before March 10?",
        "What did I do from February 29 to March 2023?",
        "Was machen wir nächsten Freitag?",
        "Que faisons-nous vendredi prochain ?",
        "What did I say on the Friday before last?",
        "What did I say on Monday three weeks back?",
        "What did I say on June 12, '24?",
        "What did I say two days before yesterday?",
        "What did I say 2-3 weeks ago?",
        "What did I say 1.5 years ago?",
        "not since Monday",
        "nicht seit dem 1. März",
        "no desde el lunes",
        "any day but Monday",
        "sauf lundi",
        "Was habe ich vorletzte Woche Montag gesagt?",
        "What did I say no later than March 10?",
        "What did I say on March 1 or 2?",
        "What did I say on March 1, 2 and 3?",
        "Was war am 1. oder 2. März?",
        "Que s'est-il passé le 1er ou le 2 mars ?",
        "What did I say on March 10 or later?",
        "on May 3, 2025 or so",
        "What did I say not before March 10?",
        "Was habe ich nicht vor dem 10. März gesagt?",
        "What did I do from Christmas to March 3?",
        "What did I do between March 3 and Easter?",
        "What did I do within 3 days of March 10?",
        "What did I do on the 29th of February last year?",
        "since next week",
        "in January and February",
        "What did I say in May or June 2023?",
        "from Monday to Wednesday last week",
        "between March 1 and March 10",
        "between March 1st and 10th",
        "from 1 to 10 March",
        "March 1-10, 2025",
        "from May to June 2023",
        "between Monday and Wednesday",
        "from January to March",
        "January through February",
        "zwischen 2023 und 2024",
        "prior to March 10",
        "zwischen dem 1. und dem 10. März",
        "vom 1. März bis zum 10. März",
        "entre le 1er et le 10 mars",
        "del 1 al 10 de marzo",
        "tra il 1 e il 10 marzo",
        "van 1 tot 10 maart",
        "before March 10",
        "antes del 10 de marzo",
        "prima del 10 marzo",
        "bis zum 10. März",
        "before last week",
        "voor maandag",
        "March 1 to 31",
        "after March 10",
        "na 10 maart",
        "What did I eat from March 10 on?",
        "What did I eat from Monday onwards?",
        "del 10 de marzo en adelante",
        "dal 10 marzo in poi",
    ],
)
def test_ambiguous_time_is_ignored(question: str) -> None:
    assert days(question) is None


def test_end_of_the_calendar_is_no_error() -> None:
    assert asked_time("What is today?", datetime(9999, 12, 31, tzinfo=UTC)) is None
    assert asked_time("What did I say a year ago?", datetime(1, 1, 1, tzinfo=UTC)) is None


def test_two_days_of_grace_follow_an_asked_time() -> None:
    asked = asked_time("What did I cook in May 2023?", NOW)
    assert asked is not None
    assert (asked.begin, asked.end) == (datetime(2023, 5, 1, tzinfo=UTC), datetime(2023, 6, 3, tzinfo=UTC))


def test_days_are_those_of_the_zone() -> None:
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


@pytest.mark.parametrize(
    ("question", "subject"),
    [
        ("Who married in May 2023?", ["who", "married", "in"]),
        ("last week", ["last", "week"]),
        ("Where was it warm in 2023?", ["where", "was", "it", "warm", "in", "2023"]),
    ],
)
def test_words_besides_the_time_are_the_subject(question: str, subject: list[str]) -> None:
    asked = asked_time(question, NOW)
    assert asked is not None
    assert words(asked.rest) == subject


@pytest.mark.parametrize(
    ("question", "number", "is_doubtful"),
    [
        ("Do I live on the 3rd?", "3", True),
        ("Woon ik op de 3e?", "3", True),
        ("¿Qué número llevo, el 10?", "10", True),
        ("Gioco con il 10?", "10", True),
        ("Quel étage, le 4?", "4", True),
        ("Kommt er am 3.?", "3", True),
        ("Hvem er den 3.?", "3", True),
        ("What did we discuss on the 26th?", "26", False),
        ("Was habe ich am 26. erzählt?", "26", False),
        ("qu'est-ce que je t'ai dit le 26 ?", "26", False),
        ("¿Qué te dije el 26?", "26", False),
        ("di cosa abbiamo parlato il 26?", "26", False),
        ("o que conversamos no dia 26?", "26", False),
        ("wat hebben we op de 26e besproken?", "26", False),
        ("hvor langt cyklede jeg den 26.?", "26", False),
        ("taxi 20/3?", "20/3", True),
        ("taxi on 3 March?", "", False),
        ("taxi on 2026-03-03?", "", False),
        ("taxi am Dienstag, dem 3.?", "", False),
    ],
)
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


@pytest.mark.parametrize(
    ("order", "question"),
    [
        ("newest", "What did we discuss yesterday?"),
        ("newest", "anything from yesterday?"),
        ("newest", "what did I say in October?"),
        ("newest", "What's new since Monday?"),
        ("newest", "Remind me what we discussed on the 26th."),
        ("newest", "What did I complain about on Thursday?"),
        ("newest", "catch me up on Thursday's chat"),
        ("newest", "what did I bring up the day before yesterday?"),
        ("oldest", "what was the very first thing I told you?"),
        ("oldest", "was war das allererste, was ich dir erzählt habe?"),
        ("newest", "Worüber habe ich mich gestern beschwert?"),
        ("newest", "De quoi je me suis plaint hier ?"),
        ("newest", "¿De qué me quejé ayer?"),
        ("newest", "Di cosa mi sono lamentato ieri?"),
        ("newest", "Do que me queixei ontem?"),
        ("newest", "Waar klaagde ik gisteren over?"),
        ("newest", "Hvad klagede jeg over i forgårs?"),
        ("oldest", "Hvad var det allerførste, jeg fortalte dig?"),
        ("newest", "what was our last conversation about?"),
        ("newest", "Where did we leave off?"),
        ("oldest", "what was the first thing I ever told you?"),
        ("newest", "Was haben wir vorgestern besprochen?"),
        ("newest", "Worüber haben wir zuletzt gesprochen?"),
        ("oldest", "Was war das Erste, was ich dir erzählt habe?"),
        ("newest", "De quoi on a parlé hier ?"),
        ("newest", "De quoi parlions-nous la dernière fois ?"),
        ("oldest", "Quelle est la première chose que je t'ai dite ?"),
        ("newest", "¿De qué hablamos ayer?"),
        ("newest", "¿De qué hablamos la última vez?"),
        ("oldest", "¿Qué fue lo primero que te conté?"),
        ("newest", "Cosa ci siamo detti la settimana scorsa?"),
        ("oldest", "Qual è la prima cosa che ti ho detto?"),
        ("newest", "Sobre o que falamos ontem?"),
        ("oldest", "Qual foi a primeira coisa que eu te contei?"),
        ("newest", "Waar hadden we het gisteren over?"),
        ("newest", "Waar ging ons laatste gesprek over?"),
        ("oldest", "Wat was het eerste wat ik je vertelde?"),
        ("newest", "Hvad talte vi om i går?"),
        ("oldest", "Hvad var det første jeg fortalte dig?"),
    ],
)
def test_question_about_talk_asks_for_a_time_alone(order: str, question: str) -> None:
    assert alone(question) == (order, True)


@pytest.mark.parametrize(
    "question",
    [
        "What did I cook yesterday?",
        "When is my first dentist appointment?",
        "What was the last film I watched?",
        "Was habe ich gestern gegessen?",
        "yes",
        "the",
        "",
    ],
)
def test_question_with_a_subject_asks_for_more(question: str) -> None:
    assert alone(question) is None


@pytest.mark.parametrize(
    "question",
    [
        "Where am I from?",
        "What do I have on Monday?",
        "Where am I today?",
        "what raise did I get?",
    ],
)
def test_stop_words_may_have_a_meaning_of_their_own(question: str) -> None:
    assert alone(question) == ("newest", False)


@pytest.mark.parametrize("words_of_dates", ["1 may ", "in a week ago ", "3 days ago ", "Mai 3 vor ", "monday - "])
def test_question_of_many_dates_takes_no_longer(words_of_dates: str) -> None:
    asked_time(words_of_dates, NOW)  # loads the words of its language
    began = thread_time()
    asked_time(words_of_dates * MOST_CHARACTERS, NOW)
    assert thread_time() - began < 3  # a few milliseconds


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What did I say on the penultimate Monday?", "2026-03-23"),
        ("What did I buy on the second-to-last Friday?", "2026-03-20"),
        ("Was habe ich vorletzten Montag gesagt?", "2026-03-23"),
        ("Was war am vorletzten Freitag?", "2026-03-20"),
        ("Was war am vorvorigen Montag?", "2026-03-23"),
        ("What did I say on the second-last Monday?", "2026-03-23"),
        ("Was geschah am vorletzten Dienstag?", "2026-03-17"),
        ("Qu'ai-je dit l'avant-dernier lundi ?", "2026-03-23"),
        ("¿Qué dije el penúltimo lunes?", "2026-03-23"),
        ("¿Qué dije el lunes antepasado?", "2026-03-23"),
        ("O que eu disse na penúltima segunda-feira?", "2026-03-23"),
        ("Che cosa ho detto il penultimo lunedì?", "2026-03-23"),
        ("Wat zei ik voorlaatste maandag?", "2026-03-23"),
    ],
)
def test_weekday_before_last_is_a_week_earlier(question: str, expected: str) -> None:
    assert days(question) == period(expected)
