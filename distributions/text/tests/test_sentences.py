"""Ends of sentences, and cuts of texts."""

from hypothesis import given
from hypothesis import strategies as st

from afterword_text.sentences import cut_at_sentence, cut_at_word, split_sentences
from tests.rows import with_rows


@with_rows
def test_sentences_end_where_a_reader_would_say(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


@given(st.text())
def test_splitting_loses_nothing_but_white_space(text: str) -> None:
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


@given(st.text(), st.integers(2, 60))
def test_cut_text_keeps_its_limit(text: str, limit: int) -> None:
    for cut in (cut_at_word(text, limit), cut_at_sentence(text, limit)):
        assert len(cut) <= limit
        assert cut == text or cut.endswith("…")


def test_long_text_ends_with_a_whole_sentence() -> None:
    assert cut_at_sentence("One two. Three four. Five six seven.", 30) == "One two. Three four. …"


def test_long_sentence_ends_with_a_whole_word() -> None:
    assert cut_at_sentence("One two three four five", 16) == "One two three…"
    assert cut_at_word("One two three four five", 8) == "One two…"


def test_cut_of_unspaced_text_leaves_no_half_number():
    assert cut_at_word("用户要求取消订单号471123456789", 14) == "用户要求取消订单号…"
    assert cut_at_word("退款 用户要求取消订单号471123456789", 16) == "退款 用户要求取消订单号…"


def test_overlong_word_is_cut() -> None:
    assert cut_at_word("x" * 100, 10) == "x" * 9 + "…"
