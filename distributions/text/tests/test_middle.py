"""A text whose middle is removed says how much is missing, and no word is cut in two."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword_text.sentences import LONGEST_WORD, MARKER_CHARACTERS, without_middle

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
