"""Tokens that structure a chat never survive in a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword_text.visible import strip_control_tokens
from tests.nasty_texts import TOKENS
from tests.rows import with_rows


@pytest.mark.parametrize("token", TOKENS)
def test_control_token_becomes_a_space(token: str) -> None:
    assert strip_control_tokens(f"before{token}after") == "before after"


@with_rows
def test_ordinary_text_stays(text: str) -> None:
    assert strip_control_tokens(text) == text


@given(st.lists(st.sampled_from([*TOKENS, "<|", "|>", "<", ">", "s", "im_start", " ", "[", "INST]", "a"])).map("".join))
def test_no_token_remains_or_arises_from_pieces(text: str) -> None:
    stripped = strip_control_tokens(text)
    assert not any(token in stripped for token in TOKENS)
    assert strip_control_tokens(stripped) == stripped


def test_characters_outside_utf8_are_removed() -> None:
    assert strip_control_tokens("a\ud800b\x00c\nd") == "abc\nd"
