"""Text that small models write before and after the requested answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword_text.answer import AnswerUnusable, Limits, read_plain
from afterword_text.tokens import count_tokens
from tests.nasty_texts import TOKENS
from tests.rows import with_rows

LIMITS = Limits(800)
SAID = "Ada cancelled order 4711. The refund takes three days."


@with_rows
def test_only_the_text_itself_is_taken(text: str) -> None:
    assert read_plain(text, "long_summary", LIMITS) == SAID


@with_rows
def test_text_that_mentions_a_tag_or_label_stays(said: str) -> None:
    assert (
        read_plain(said, "long_summary", LIMITS).split() == said.replace("</think>", "/think").replace("- ", "").split()
    )


@pytest.mark.parametrize(
    "text", ["Title: A refund", '"A refund".', "A refund.\nIt is about order 4711.", "**A refund**"]
)
def test_title_is_one_line_without_label_quotes_or_stop(text: str) -> None:
    assert read_plain(text, "title", LIMITS) == "A refund"


def test_surplus_sentences_are_dropped() -> None:
    text = " ".join(f"Fact {n} is told." for n in range(9))
    assert read_plain(text, "long_summary", LIMITS, 5) == " ".join(f"Fact {n} is told." for n in range(5))


@with_rows
def test_unusable_plain_answer_says_why(text: str, problem: str) -> None:
    with pytest.raises(AnswerUnusable, match=problem):
        read_plain(text, "long_summary", LIMITS)


@given(
    st.one_of(st.text(), st.lists(st.sampled_from([*TOKENS, "user\n", "A fact. ", "\n", '"'])).map("".join)),
    st.sampled_from(["title", "short_summary", "long_summary", "rolling_summary"]),
)
def test_any_answer_loses_control_tokens_and_keeps_lengths(text: str, field: str) -> None:
    try:
        said = read_plain(text * 30, field, Limits(60, 400))
    except AnswerUnusable:
        return
    assert said
    assert not any(token in said for token in TOKENS)
    longest = {"title": 60, "short_summary": 400, "long_summary": 400}.get(field)
    assert len(said) <= longest if longest else count_tokens(said) <= 60
