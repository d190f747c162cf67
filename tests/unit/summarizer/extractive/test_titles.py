"""Titles without an LLM: noun phrases, of the words that the conversation uses most."""

from collections import Counter

import pytest

from afterword.streams.language import stem_words
from afterword.streams.summarizer.extractive import summarize
from afterword.streams.summarizer.extractive.titles import TITLE_CHARACTERS, title_phrase
from benchmarks.quality import TITLES, titles
from tests.unit.summarizer.conversations import an_episode_of


def terms(text: str) -> list[str]:
    return stem_words(text, "en")


def title(*sentences: str) -> str:
    used = Counter(term for sentence in sentences for term in set(terms(sentence)))
    return title_phrase([(sentence, 1.0) for sentence in sentences], used, terms)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("How do I apply for disability benefits?", "Disability benefits"),
        ("I need to register my old motorcycle next year.", "Old motorcycle"),
        ("The bank notified the insurance company.", "Insurance company"),
        ("Am I eligible for federal student loan forgiveness?", "Federal student loan forgiveness"),
        ("I completed the VA.gov site registration.", "VA.gov site registration"),
        ("He works at the New York State Department of Health.", "New York State Department of Health"),
        ("We are consolidating my student loans.", "Consolidating my student loans"),
        ("There are 300 broken garden chairs.", "Broken garden chairs"),
    ],
)
def test_a_title_is_the_noun_phrase_of_its_sentence(sentence: str, expected: str) -> None:
    assert title(sentence) == expected


def test_a_single_word_gets_another_topic_beside_it() -> None:
    assert title("Is a passport ok?", "Can I bring a utility bill?") == "Utility bill"
    assert title("Is a passport ok?", "The passport!", "Passport?", "Is a mortgage?") == "Passport and mortgage"


def test_verbs_numbers_and_times_make_no_title() -> None:
    assert title("We got married next year.") == ""
    assert title("42, 43 or 44?") == ""


def test_a_conversation_without_a_noun_phrase_still_has_a_title() -> None:
    assert summarize(an_episode_of(("user", "We got married last year.")), "", 20).title == "We got married last year."


def test_titles_of_the_benchmark_are_phrases_of_their_conversations() -> None:
    found = titles()
    assert len(found) == TITLES
    assert all(2 <= len(each) <= TITLE_CHARACTERS and each[0].isalnum() for each in found)
    assert sum(" " in each for each in found) >= 0.97 * TITLES
