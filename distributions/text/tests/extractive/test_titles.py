"""Titles without an LLM: noun phrases from the first request."""

from afterword_text.extractive import summarize
from afterword_text.texts import TITLE_CHARACTERS
from benchmarks.quality import TITLES, titles
from tests.rows import with_rows
from tests.unit.summarizer.conversations import an_episode_of


def title(*said: str) -> str:
    return summarize(an_episode_of(*(("user", text) for text in said)), "", 20).title


@with_rows
def test_title_is_its_sentences_noun_phrase(sentence: str, expected: str) -> None:
    assert title(sentence) == expected


@with_rows
def test_long_opening_leads_to_its_topic(sentence: str, expected: str) -> None:
    assert title(sentence) == expected


def test_first_request_outranks_later_ones() -> None:
    assert title("I want a refund for my ticket.", "The train was late.") == "Refund for my ticket"


def test_greetings_make_no_title() -> None:
    assert title("Hello, how are you?", "My washing machine leaks water.") == "Washing machine leaks water"


def test_single_word_gives_its_sentence_as_title() -> None:
    assert title("Hi, why is my sourdough so dense?") == "Why is my sourdough so dense?"


def test_message_of_one_word_is_no_title() -> None:
    assert title("WHAT", "I start at the museum shop in May.") == "Museum shop in May"


def test_title_is_whole() -> None:
    found = title("I need " + "the broken chair of the owner with " * 20 + "a cat.")
    assert len(found) <= TITLE_CHARACTERS
    assert found.endswith(("chair", "owner"))


def test_conversation_without_a_noun_phrase_has_a_title() -> None:
    assert title("We got married last year.") == "We got married last year."


def test_benchmark_titles_are_phrases_of_their_conversations() -> None:
    found = titles()
    assert len(found) == TITLES
    assert all(2 <= len(each) <= TITLE_CHARACTERS and each[0].isalnum() for each in found)
    assert sum(" " in each for each in found) >= 0.97 * TITLES


def test_form_of_address_ends_no_phrase() -> None:
    assert title("I take lessons with Ms. Okafor on Thursdays.") == "Lessons with Ms Okafor on Thursdays"
