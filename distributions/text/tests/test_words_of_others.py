"""Whose words a message consists of."""

import re
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword_text.words_of_others import Whose, own_words, parts_of

MARKED = Path(__file__).with_name("words_of_others.txt").read_text(encoding="utf-8").split("\n", 1)[1].split("\n====\n")


@pytest.mark.parametrize("marked", MARKED)
def test_words_of_others_are_told_from_own_ones(marked: str) -> None:
    marked = marked.rstrip("\n")
    text = re.sub("[⟦⟧]", "", marked)
    found = "".join(
        text[part.start : part.end] if part.whose is Whose.OWN else f"⟦{text[part.start : part.end]}⟧"
        for part in parts_of(text)
    )
    assert found.replace("⟧⟦", "") == marked


@pytest.mark.parametrize(
    ("text", "whose", "author"),
    [
        ("Fine.\n\nOn Tue, 26 May 2026 at 09:12, Ida Holm <i@x.example> wrote:\n> Lunch?", Whose.FORWARDED, "Ida Holm"),
        ("From: Ida Holm\nSubject: lunch\n\nI'm vegan.", Whose.FORWARDED, "Ida Holm"),
        ('My boss wrote: "I am moving to Oslo."', Whose.QUOTED, "My boss"),
        ("Q: Where?\nA: In Lagos.", Whose.PASTED, "A"),
        ("> I live in Oslo.", Whose.QUOTED, ""),
        ("Run `make it all` first.", Whose.MACHINE, ""),
    ],
)
def test_kind_and_author_of_others_words_are_named(text: str, whose: Whose, author: str) -> None:
    assert (whose, author) in {(part.whose, part.author) for part in parts_of(text)}


def test_very_long_text_keeps_own_words_of_both_ends() -> None:
    own = own_words("I live in Oslo. " + "Lorem ipsum dolor. " * 50_000 + "I have two cats.")
    assert own.startswith("I live in Oslo.")
    assert own.endswith("I have two cats.")
    assert len(own) < 100_000


def test_own_words_have_a_mark_where_others_are_quoted() -> None:
    assert own_words('She said "I live in Oslo" and left.') == "She said … and left."


@given(
    st.lists(st.sampled_from(["> a", "On 3 May Ida wrote:", "", "q: b", "x,1,2", "```", '"c d e"', "why?"])).map(
        "\n".join
    )
)
def test_parts_cover_the_text_without_gaps(text: str) -> None:
    parts = parts_of(text)
    assert "".join(text[part.start : part.end] for part in parts) == text
    assert all(before.end == part.start for before, part in pairwise(parts))


@pytest.mark.parametrize(
    "piece", ["“a ‘b 'c \"d «e ", "1,2,3\n", "\n", "> a\n", "On 3 may x@y wrote:\n", "a: b\n", "'a "]
)
def test_splitting_takes_time_linear_in_the_length(piece: str) -> None:
    def seconds(times: int) -> float:
        begin = time.process_time()
        parts_of(piece * times)
        return time.process_time() - begin

    assert seconds(8000) < 40 * max(seconds(1000), 0.005)
