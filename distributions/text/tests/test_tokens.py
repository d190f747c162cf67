import subprocess
import sys
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword_text.tokens import ENCODING, PIECE_CHARACTERS, count_tokens, message_tokens, token_ids


def test_empty_text_has_no_tokens() -> None:
    assert count_tokens("") == 0


def test_control_tokens_count_as_text() -> None:
    assert count_tokens("<|endoftext|>") > 1


@pytest.mark.parametrize("text", ["\U0001f9ff" * 260_000, "word " * 210_000], ids=["many tokens", "many characters"])
def test_text_beyond_the_tokenizers_limit_is_counted(text: str) -> None:
    assert len(text) > 5 * PIECE_CHARACTERS
    assert count_tokens(text) > 200_000


def test_long_text_counts_as_its_pieces() -> None:
    piece = "ab cd " * (PIECE_CHARACTERS // 6) + "ab"
    assert len(piece) == PIECE_CHARACTERS
    assert count_tokens(piece * 3) == 3 * count_tokens(piece)


def test_long_message_is_counted_by_its_beginning_and_end() -> None:
    ends = "A table for two at eight, please. " * 300
    counted = message_tokens(ends + "x" * 600_000 + ends)
    assert counted == message_tokens(ends + "à la carte, " * 50_000 + ends)
    assert counted == pytest.approx(600_000 * count_tokens(ends) / len(ends), rel=0.05)
    assert message_tokens(ends[:10_000]) == count_tokens(ends[:10_000])


@given(st.text() | st.text(st.characters(categories=["Cs", "So", "Lu"])))
def test_token_counts_equal_the_packages(text: str) -> None:
    found = package().encode_ordinary(text)
    assert token_ids(text) == found
    assert count_tokens(text) == len(found)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which pages are resident")
def test_packed_vocabulary_is_not_kept_in_memory() -> None:
    code = """
from afterword_text.tokens import count_tokens
count_tokens("hello"), count_tokens("once more")
mappings = open("/proc/self/smaps").read().split("VmFlags")
print(sum(int(text.partition("Rss:")[2].split()[0]) for text in mappings if "_bindings" in text))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4096  # kB, of a file of 72 MB


@cache
def package() -> Any:
    from bpe_openai import get_encoding

    return get_encoding(ENCODING)
