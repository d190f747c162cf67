"""Central sentences, informative sentences, and phrases."""

from collections import Counter
from functools import partial

import pytest

from afterword.streams.language import stem_words
from afterword.streams.summarizer.extractive.ranking import (
    MAX_CANDIDATES,
    MAX_MESSAGE_CHARACTERS,
    candidates,
    centrality,
    clean,
    diverse,
    informativeness,
    is_politeness,
    similarity,
)
from afterword.streams.summarizer.extractive.titles import title_phrase
from tests.samples import an_episode_message

ENGLISH = partial(stem_words, language="en")


def test_the_sentence_that_the_others_resemble_is_the_most_central() -> None:
    terms = [["chair", "order", "refund"], ["chair", "broken"], ["order", "late"], ["refund", "friday"]]
    ranks = centrality(similarity(terms))
    assert ranks[0] == 1.0
    assert max(ranks[1:]) < 1.0


def test_sentences_without_terms_resemble_nothing() -> None:
    assert similarity([[], ["chair"]])[0].sum() == 0
    assert centrality(similarity([])) == []


def test_a_choice_prefers_what_is_new_among_equals() -> None:
    similar = similarity([["chair", "broken"], ["chair", "broken"], ["refund", "friday"]])
    assert diverse([1.0, 0.99, 0.9], similar, 2, lambda _: True) == [0, 2]


def test_a_choice_that_does_not_fit_is_passed_over() -> None:
    similar = similarity([["chair"], ["order"], ["refund"]])
    assert diverse([1.0, 0.9, 0.8], similar, 2, lambda chosen: 1 not in chosen) == [0, 2]


def test_facts_tell_more_than_small_talk() -> None:
    small_talk = informativeness("it was a nice day after all")
    for fact in ("it costs $20", "call Anna Berg tomorrow", "the code is AB-123", "we agreed on the blue one"):
        assert informativeness(fact) > small_talk


@pytest.mark.parametrize(
    "text", ["Hello!", "Thanks a lot", "Is there anything else?", "¿En qué puedo ayudarle?", "您好"]
)
def test_politeness_is_recognised(text: str) -> None:
    assert is_politeness(text, len(ENGLISH(text)))


@pytest.mark.parametrize("text", ["Hello, my order 4711 has not arrived in Rome yet", "Thanksgiving flights are full"])
def test_a_greeting_that_says_something_is_more_than_politeness(text: str) -> None:
    assert not is_politeness(text, len(ENGLISH(text)))


def test_a_reply_to_a_question_is_known_as_one() -> None:
    said = [("user", "When is it due?"), ("assistant", "On Monday."), ("assistant", "It is open until noon.")]
    found = candidates(an_episode_message(f"m{n}", role=role, content=text) for n, (role, text) in enumerate(said))
    assert [candidate.answers for candidate in found] == [False, True, False]


def test_more_sentences_than_can_be_compared_are_thinned_evenly() -> None:
    found = candidates([an_episode_message("m1", content="\n".join(f"Line {n}" for n in range(5000)))])
    assert len(found) == MAX_CANDIDATES
    numbers = [int(candidate.text.split()[1]) for candidate in found]
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    assert numbers[-1] > 4900 or numbers[-1] > numbers[-2]


def title(sentence: str) -> str:
    return title_phrase([(sentence, 1.0)], Counter(ENGLISH(sentence)), ENGLISH)


def test_a_phrase_begins_and_ends_with_a_word_that_tells_something() -> None:
    assert title("What would be the refund for a broken chair of yours?") == "Refund for a broken chair"


def test_a_phrase_is_as_long_as_a_title_may_be() -> None:
    assert len(title("broken " * 40)) <= 60
    assert title("a the of") == ""


@pytest.mark.parametrize("more", range(9))
def test_a_huge_message_without_its_middle_has_no_half_numbers(more: int) -> None:
    text = " " * more + "order 4711 " * (MAX_MESSAGE_CHARACTERS // 10)
    assert set(clean(text).split()) == {"order", "4711"}
