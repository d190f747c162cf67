"""Central sentences, informative sentences, and phrases."""

from functools import partial

import pytest

from afterword_text.extractive.ranking import (
    informativeness,
    is_politeness,
)
from afterword_text.language import stem_words
from afterword_text.sentences import MAX_MESSAGE_CHARACTERS, sentences_of

ENGLISH = partial(stem_words, language="en")


def test_facts_outrank_small_talk() -> None:
    small_talk = informativeness("it was a nice day after all")
    for fact in ("it costs $20", "call Anna Berg tomorrow", "the code is AB-123", "we agreed on the blue one"):
        assert informativeness(fact) > small_talk


@pytest.mark.parametrize(
    "text", ["Hello!", "Thanks a lot", "Is there anything else?", "¿En qué puedo ayudarle?", "您好"]
)
def test_politeness_is_recognized(text: str) -> None:
    assert is_politeness(text, len(ENGLISH(text)))


@pytest.mark.parametrize("text", ["Hello, my order 4711 has not arrived in Rome yet", "Thanksgiving flights are full"])
def test_informative_greeting_outranks_politeness(text: str) -> None:
    assert not is_politeness(text, len(ENGLISH(text)))


@pytest.mark.parametrize("more", range(9))
def test_cut_message_has_no_half_numbers(more: int) -> None:
    text = " " * more + "order 4711 " * (MAX_MESSAGE_CHARACTERS // 10)
    assert set(" ".join(sentences_of(text)).replace(".", "").split()) == {"order", "4711"}
