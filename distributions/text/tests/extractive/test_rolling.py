"""The rolling summary without an LLM, episode after episode, within its tokens."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword_text.extractive import condense, cut_to_tokens, summarize, whole_sentences
from afterword_text.tokens import count_tokens
from tests.unit.summarizer.conversations import Turn, an_episode_of, dialogues

FIRST: tuple[Turn, ...] = (
    ("user", "Hi, my name is Ada Lovelace and I am allergic to peanuts."),
    ("assistant", "Thank you, I noted it."),
)


def rolling_after(episodes: int, max_tokens: int) -> str:
    """Return the rolling summary after these episodes."""
    rolling = ""
    for turns in (FIRST, *dialogues()[: episodes - 1]):
        rolling = summarize(an_episode_of(*turns), rolling, max_tokens).rolling_summary
        assert count_tokens(rolling) <= max_tokens
    return rolling


def test_facts_of_the_first_episode_survive_fifty_more() -> None:
    rolling = rolling_after(50, 800)
    assert "Ada Lovelace" in rolling
    assert "peanuts" in rolling


def test_every_episode_keeps_a_line_within_the_bound() -> None:
    assert len(rolling_after(15, 800).splitlines()) == 15


@pytest.mark.parametrize("max_tokens", range(15, 200, 9))
def test_no_sentence_is_cut_and_questions_keep_answers(max_tokens: int) -> None:
    text = rolling_after(6, 800)
    told = whole_sentences(text, max_tokens)
    assert count_tokens(told) <= max_tokens
    assert all(line[-1] in ".?!" for line in told.splitlines())
    for question, answer in re.findall(r"([^?.!]*\?) (\w+: \S+)", text):
        assert question not in told or f"{question} {answer}" in told


def test_first_and_newest_lines_stay_beyond_the_bound() -> None:
    rolling = rolling_after(50, 200)
    assert "Ada" in rolling.splitlines()[0]
    newest = summarize(an_episode_of(*dialogues()[48]), "", 200).rolling_summary
    assert rolling.splitlines()[-1] in newest


def test_new_episode_adds_its_line() -> None:
    told: tuple[Turn, ...] = (("user", "I want to cancel order 4711 today."),)
    line = "User: I want to cancel order 4711 today."
    assert summarize(an_episode_of(*told), "I am Ada.", 800).rolling_summary == f"I am Ada.\n{line}"
    assert summarize(an_episode_of(*told), line, 800).rolling_summary == line


def test_line_that_is_a_prefix_of_another_is_added() -> None:
    known, line = "User: My budget is 50.5 million euros.", "User: My budget is 50."
    assert summarize(an_episode_of(("user", "My budget is 50.")), known, 800).rolling_summary == f"{known}\n{line}"


def test_least_informative_sentences_go_first() -> None:
    text = "User: I am Ada Lovelace, order 4711. User: it was nice to talk about this and that for a while."
    assert condense(text, 15) == "User: I am Ada Lovelace, order 4711."


def test_text_within_the_bound_is_only_tidied() -> None:
    assert condense("One.  Two.\n\n<|im_end|>Three.", 50) == "One. Two.\nThree."


@given(st.text(), st.integers(12, 60))
def test_bound_holds_for_any_text(text: str, max_tokens: int) -> None:
    assert count_tokens(condense(text * 5, max_tokens)) <= max_tokens


@given(st.lists(st.text(min_size=1, alphabet=st.characters(categories=["L", "N"])), min_size=1), st.integers(20, 200))
def test_condensing_what_fits_changes_nothing(said: list[str], max_tokens: int) -> None:
    condensed = condense("\n".join(f"{word}." for word in said), max_tokens)
    assert condense(condensed, max_tokens) == condensed


def test_shortened_sentence_has_no_half_number() -> None:
    text = "用户在电话里要求取消订单号471123456789并退款"
    cuts = {cut_to_tokens(text, tokens) for tokens in range(8, count_tokens(text))}
    assert {"".join(filter(str.isdigit, cut)) for cut in cuts} == {"", "471123456789"}
