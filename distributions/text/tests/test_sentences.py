"""Sentences, words and tokens, and texts that are cut."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword_text.gate import Evidence, ground
from afterword_text.gate.quantities import WORDS_KNOWN
from afterword_text.sentences import (
    LONGEST_WORD,
    MARKER_CHARACTERS,
    cut_at_sentence,
    cut_at_word,
    split_sentences,
    without_middle,
)
from afterword_text.tokens import ENCODING, PIECE_CHARACTERS, count_tokens, message_tokens, token_ids
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


MARKER = re.compile(r" \[… ([\d,]+) characters left out …\] ")


@given(st.text(max_size=400), st.integers(0, 300))
def test_kept_and_counted_parts_make_the_whole(text: str, characters: int) -> None:
    short = without_middle(text, characters)
    if short == text:
        assert len(text) <= characters + MARKER_CHARACTERS
        return
    head, left_out, tail = MARKER.split(short)
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + len(tail) <= characters
    assert len(head) + int(left_out.replace(",", "")) + len(tail) == len(text)
    assert len(head) + len(tail) >= characters - 2 * LONGEST_WORD


def test_marker_says_how_many_characters_are_omitted() -> None:
    assert " [… 12,345 characters left out …] " in without_middle("字" * 12_445, 100)


@pytest.mark.parametrize("word", ["4711-0815", "٤٧١١٠٨١٥", "Größenänderung", "обновление", "सूचनाएँ"])
@pytest.mark.parametrize("characters", range(60, 120))
def test_no_word_or_number_is_cut_in_two(word: str, characters: int) -> None:
    short = without_middle(" ".join([word] * 100), characters)
    assert set(MARKER.sub(" ", short).split()) == {word}


@pytest.mark.parametrize("characters", range(60, 120))
def test_unspaced_text_has_no_number_cut_in_two(characters: int) -> None:
    kept = MARKER.split(without_middle("订单号4711的价格是１２３４元。" * 30, characters))
    assert set(re.findall(r"\d+", kept[0] + " " + kept[2])) == {"4711", "１２３４"}


def test_text_without_spaces_is_cut() -> None:
    assert len(without_middle("a" * 10_000, 200)) <= 200 + MARKER_CHARACTERS


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


def rows(name: str) -> list[dict[str, Any]]:
    lines = Path(__file__).with_name("rows").joinpath(name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


SENTENCES, ORDINARY = rows("sentences.jsonl"), rows("ordinary.jsonl")
MOST_CUT = 12 / 78
"""At most this share of ordinary lines, each one sentence with abbreviations, is cut inside."""


@pytest.mark.parametrize("row", SENTENCES, ids=lambda row: row["text"])
def test_sentence_ends_where_a_reader_ends_it(row: dict[str, str]) -> None:
    """`|` stands where a sentence ends, `//` where one ends without a space."""
    text = row["text"].replace("|", "").replace("//", "")
    assert split_sentences(text) == [part.strip() for part in row["text"].replace("//", "|").split("|")]


def test_every_language_with_figures_has_sample_prose() -> None:
    assert {row["language"] for row in SENTENCES if row["kind"] == "prose"} == WORDS_KNOWN


@pytest.mark.parametrize("part", ["first", "second"])
def test_few_ordinary_lines_are_cut_inside(part: str) -> None:
    lines = [row["text"] for row in ORDINARY if row["part"] == part]
    cut = [line for line in lines if len(split_sentences(line)) > 1]
    assert len(cut) <= MOST_CUT * len(lines), cut


@pytest.mark.parametrize("row", rows("gate.jsonl"), ids=lambda row: f"{row['kind']}: {row['source']}")
def test_figure_is_supported_only_as_its_language_says(row: dict[str, str]) -> None:
    language = row["language"]
    for text, is_wrong in ((row["right"], False), (row["wrong"], True)):
        found = ground([text], Evidence(row["source"], language), language)
        assert bool(found.wrong_figure) is is_wrong, text
