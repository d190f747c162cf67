"""Central sentences, informative sentences, and phrases."""

from functools import partial

import pytest

from afterword.streams.language import stem_words
from afterword.streams.summarizer.extractive.ranking import (
    MAX_EXCHANGES,
    diverse,
    exchanges_of,
    informativeness,
    is_politeness,
    similarity,
    turns_of,
)
from afterword.streams.summarizer.prose import MAX_MESSAGE_CHARACTERS, sentences_of
from tests.samples import an_episode_message

ENGLISH = partial(stem_words, language="en")


def test_sentences_without_terms_resemble_nothing() -> None:
    assert similarity([[], ["chair"]])[0].sum() == 0


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


def test_more_exchanges_than_can_be_compared_are_thinned_evenly() -> None:
    turns = turns_of([an_episode_message("m1", content="\n".join(f"Line {n}" for n in range(1500)))], ENGLISH)
    numbers = [int(sentence.text.split()[1].strip(".")) for (sentence,) in exchanges_of(turns, ENGLISH)]
    assert len(numbers) == MAX_EXCHANGES
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    assert numbers[-1] > 1400


@pytest.mark.parametrize("more", range(9))
def test_a_huge_message_without_its_middle_has_no_half_numbers(more: int) -> None:
    text = " " * more + "order 4711 " * (MAX_MESSAGE_CHARACTERS // 10)
    assert set(" ".join(sentences_of(text)).replace(".", "").split()) == {"order", "4711"}
