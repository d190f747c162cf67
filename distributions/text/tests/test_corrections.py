"""Which messages correct earlier ones."""

import pytest

from afterword_text.corrections import (
    MOST_WORDS,
    Likelihood,
    asks_for_value,
    changes,
    corrects,
    likelihoods,
)
from tests.rows import with_rows


@with_rows
def test_message_in_a_corrections_form_corrects(text: str) -> None:
    assert corrects(text)


@with_rows
def test_ordinary_message_is_not_a_correction(text: str) -> None:
    assert not corrects(text)


@with_rows
def test_question_for_a_value_asks_its_present_state(question: str, expected: bool) -> None:
    assert asks_for_value(question) == expected


def test_message_may_report_a_change() -> None:
    assert changes("I've adjusted the snack budget to $75, can you suggest some drinks?")
    assert changes("Der Termin wurde auf Freitag verschoben.")
    assert not changes("The snack budget is $65.")


@pytest.mark.parametrize(
    ("likelihood", "earlier", "later"),
    [
        (Likelihood.FORM, "The plumber comes on Monday.", "No, Thursday."),
        (Likelihood.OTHER_VALUE, "My locker is number 77.", "it's 71, my 1s look like 7s"),
        (Likelihood.OTHER_VALUE, "The interview is on Monday.", "They push it to Tuesday."),
        (Likelihood.OTHER_VALUE, "The tenant is Mr Falkenrath.", "His name has another spelling, Falkenroth."),
        (Likelihood.FORM, "My dentist appointment is on Tuesday at 9.", "No, my wife says Thursday."),
        (Likelihood.FORM, "I booked a table at Gusto for Saturday at 7.", "Actually, make that Sunday at 8."),
        (Likelihood.FORM, "The car is a green Skoda.", "Sorry, I mixed that up: a blue one."),
        (Likelihood.OTHER_VALUE, "Der Termin ist am Montag.", "Er ist am Dienstag."),
        (Likelihood.SAME_SUBJECT, "The hint is my first school.", "Scrap the school: the street where I grew up."),
        (None, "The boiler is a Vaillant.", "I had the label upside down, so to speak."),
        (None, "The plumber comes on Monday.", "No, Thursday?"),
        (None, "The plumber comes on Monday.", "No, Thursday. " + "And so on " * MOST_WORDS),
    ],
)
def test_other_value_may_correct_without_the_form(likelihood: object, earlier: str, later: str) -> None:
    assert likelihoods([later], earlier, ["en"]) == [likelihood]


@with_rows
def test_statement_about_something_else_corrects_nothing(language: str, earlier: str, later: str) -> None:
    assert likelihoods([later], earlier, [language]) == [None]
