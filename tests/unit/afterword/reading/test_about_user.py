"""Questions about the user as such."""

import pytest

from afterword.reading.profile import answering, profile
from afterword_text.word_model import asked_in_known_words, asked_of_user
from tests.rows import with_rows
from tests.samples import a_fact, of_user


@with_rows
def test_questions_about_the_user_are_recognized(thing: str, question: str) -> None:
    assert asked_of_user(question) == thing


@with_rows
def test_question_in_other_words_is_recognized_by_the_model(thing: str, question: str) -> None:
    assert asked_in_known_words(question) is None
    assert asked_of_user(question) == thing


@pytest.mark.parametrize("text", ["I'm Mirjana", "Soy Xavi.", "I'm allergic to latex", "Je travaille à la mairie."])
def test_statement_about_oneself_is_not_a_question(text: str) -> None:
    assert asked_of_user(text) is None


@with_rows
def test_questions_with_a_subject_are_not_about_the_user(question: str) -> None:
    assert asked_of_user(question) is None


def test_facts_with_the_asked_name_come_first() -> None:
    facts = [
        of_user(a_fact("is a nurse", attribute="job", message_ids=("m1",)), 1),
        of_user(a_fact("lives in Porto", attribute="home_city", message_ids=("m2",)), 2),
        of_user(a_fact("lives in Rome", attribute="home_city", about="Ann", message_ids=("m3",)), 3),
    ]
    known = profile("u1", None, facts).facts
    assert answering("home", known) == {"c1:2": ["m2"], "c1:1": ["m1"]}
    assert answering("name", known) == {}
    assert answering("general", known).keys() == {"c1:1", "c1:2", "c1:3"}
