"""What users say about themselves, found without an LLM."""

import pytest

from afterword.schemas import EpisodeMessage
from afterword_text.corrections import MOST_WORDS, Likelihood, asks_for_value, changes, corrects, likelihoods
from afterword_text.statements import MOST_FACTS, first_person, statements
from tests.rows import with_rows
from tests.samples import an_episode_message


@with_rows
def test_statements_about_oneself_are_found(sentence: str, kind: str, attribute: str | None) -> None:
    assert (kind, attribute) in [(one.kind, one.attribute) for one in statements(sentence) if one.status == "stated"]


@with_rows
def test_passing_remarks_give_no_statement(sentence: str) -> None:
    assert [one for one in statements(sentence) if one.status != "ended"] == []


def said(*texts: str, role: str = "user") -> list[EpisodeMessage]:
    return [an_episode_message(f"m{n}", content=text, role=role, user_id="ann") for n, text in enumerate(texts)]


def known(*texts: str) -> list[str]:
    return [fact.statement for fact in first_person(said(*texts)) if fact.status != "ended"]


def ended(*texts: str) -> list[tuple[str, str | None]]:
    return [(fact.statement, fact.attribute) for fact in first_person(said(*texts)) if fact.status == "ended"]


def test_users_clauses_are_kept_with_their_message() -> None:
    messages = [
        an_episode_message("m1", content="Hello! I live in Leeds. How are you?", user_id="ann"),
        an_episode_message("m2", content="I live in Porto.", role="assistant"),
        an_episode_message("m3", content="I hate tea and I live in Leeds.", user_id="bob"),
    ]
    found = [(fact.statement, fact.user_id, fact.message_ids, fact.said_by) for fact in first_person(messages)]
    assert found == [
        ("I live in Leeds.", "ann", ("m1",), "user"),
        ("I hate tea", "bob", ("m3",), "user"),
        ("I live in Leeds.", "bob", ("m3",), "user"),
    ]


def test_statement_names_what_it_takes_for_granted_once() -> None:
    assert known("My sister Ines lives in Porto.") == ["My sister Ines lives in Porto."]


def test_last_of_many_statements_are_kept() -> None:
    found = first_person(said(" ".join(f"I am {n} years old." for n in range(100))))
    assert len(found) == MOST_FACTS
    assert found[-1].statement == "I am 99 years old."


def test_greeting_gives_name_job_and_city() -> None:
    found = {fact.attribute: fact.status for fact in first_person(said("Hi! I'm Marta, I'm a nurse in Porto"))}
    assert found == {"name": "implied", "job": "stated", "home_city": "implied"}


@with_rows
def test_sentence_that_asks_may_state_something(text: str, statement: str) -> None:
    assert statement in known(text)


@pytest.mark.parametrize("text", ["I live in Leeds, right?", "Do I live in Leeds?", "Who says I like jazz?"])
def test_question_about_a_statement_states_nothing(text: str) -> None:
    assert known(text) == []


@with_rows
def test_pretended_value_replaces_no_real_one(text: str) -> None:
    assert [fact for fact in first_person(said(text)) if fact.attribute and fact.status != "ended"] == []


@with_rows
def test_frames_quotations_and_jokes_state_nothing(text: str) -> None:
    assert known(text) == []


@with_rows
def test_linked_clause_keeps_the_person_it_is_about(text: str, statement: str) -> None:
    assert known(text)[-1].startswith(statement)


@with_rows
def test_link_before_a_report_is_not_stated(text: str, statement: str) -> None:
    assert statement in known(text)


def test_frame_lasts_until_somebody_ends_it() -> None:
    assert known("Pretend you are a waiter.", "I'm Lord Pemberton. I live in Paris.") == []
    assert known("Pretend you are a waiter.", "I'm a lord.", "Game over. I live in Leeds.") == ["I live in Leeds."]
    before = said("Let's role-play.")
    assert first_person(said("I live in Paris."), before) == ()


@with_rows
def test_denials_end_what_was_said(text: str, attribute: str | None) -> None:
    assert known(text) == []
    assert [one for _, one in ended(text)] == [attribute]


def test_forget_that_ends_the_previous_messages_statements() -> None:
    assert ended("I have two dogs.", "Forget that, please.") == [
        ("Forget that, please (I have two dogs.)", "number_of_dogs")
    ]
    found = first_person([an_episode_message("m9", content="Forget that.", user_id="ann")], said("I have two dogs."))
    assert [fact.status for fact in found] == ["ended"]


def test_request_to_forget_means_the_same_however_often_it_is_made() -> None:
    found = first_person(said("I have two dogs.", *["Forget that."] * 1500))
    assert [fact.statement for fact in found] == ["I have two dogs.", "Forget that (I have two dogs.)"]


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
        (Likelihood.FORM, "The plumber comes on Monday.", "Sorry, Thursday, silly me. Can you move my lunch?"),
        (None, "The plumber comes on Monday.", "No, that's fine. Can you call the plumber?"),
        (None, "The plumber comes on Monday.", "No, Thursday. " + "And so on " * MOST_WORDS),
    ],
)
def test_other_value_may_correct_without_the_form(likelihood: object, earlier: str, later: str) -> None:
    assert likelihoods([later], earlier, ["en"]) == [likelihood]


@with_rows
def test_statement_about_something_else_corrects_nothing(language: str, earlier: str, later: str) -> None:
    assert likelihoods([later], earlier, [language]) == [None]
