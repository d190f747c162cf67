"""Rows of `rows`: ends of sentences, and figures as people say them."""

import json
from pathlib import Path
from typing import Any

import pytest

from afterword_text.gate import Evidence, ground
from afterword_text.gate.quantities import WORDS_KNOWN
from afterword_text.sentences import split_sentences


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


def test_prose_is_in_each_language_whose_figures_are_read() -> None:
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
