"""A text whose middle is removed says how much is missing, and no word is cut in two."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword_text.sentences import LONGEST_WORD, MARKER_CHARACTERS, without_middle

MARKER = re.compile(r" \[… ([\d,]+) characters left out …\] ")


@given(st.text(max_size=400), st.integers(0, 300))
def test_what_is_kept_and_what_is_counted_are_the_whole_text(text: str, characters: int) -> None:
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


def test_a_marker_says_how_many_characters_are_left_out() -> None:
    assert " [… 12,345 characters left out …] " in without_middle("字" * 12_445, 100)


@pytest.mark.parametrize("word", ["4711-0815", "٤٧١١٠٨١٥", "Größenänderung", "обновление", "सूचनाएँ"])
@pytest.mark.parametrize("characters", range(60, 120))
def test_no_word_and_no_number_is_cut_in_two(word: str, characters: int) -> None:
    short = without_middle(" ".join([word] * 100), characters)
    assert set(MARKER.sub(" ", short).split()) == {word}


@pytest.mark.parametrize("characters", range(60, 120))
def test_where_words_are_written_without_spaces_no_number_is_cut_in_two_either(characters: int) -> None:
    kept = MARKER.split(without_middle("订单号4711的价格是１２３４元。" * 30, characters))
    assert set(re.findall(r"\d+", kept[0] + " " + kept[2])) == {"4711", "１２３４"}


def test_a_text_without_spaces_is_cut_all_the_same() -> None:
    assert len(without_middle("a" * 10_000, 200)) <= 200 + MARKER_CHARACTERS
