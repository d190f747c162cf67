import pytest

from streams.tokens import PIECE_CHARACTERS, count_tokens


def test_nothing_has_no_tokens() -> None:
    assert count_tokens("") == 0


def test_control_tokens_count_as_the_text_they_are() -> None:
    assert count_tokens("<|endoftext|>") > 1


@pytest.mark.parametrize("text", ["\U0001f9ff" * 260_000, "word " * 210_000], ids=["many tokens", "many characters"])
def test_a_text_longer_than_the_tokenizer_takes_is_counted_too(text: str) -> None:
    assert len(text) > 5 * PIECE_CHARACTERS
    assert count_tokens(text) > 200_000


def test_a_long_text_counts_as_its_pieces() -> None:
    piece = "ab cd " * (PIECE_CHARACTERS // 6) + "ab"
    assert len(piece) == PIECE_CHARACTERS
    assert count_tokens(piece * 3) == 3 * count_tokens(piece)
