"""The reference pages match the code and leave nothing unexplained."""

import re

import pytest

from tools.reference.__main__ import DOCS, pages

PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_committed_page_matches_the_code(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name], f"docs/{name} is stale: make docs"


@pytest.mark.parametrize("name", [name for name in PAGES if name.endswith(".md")])
def test_every_row_and_option_has_a_description(name: str) -> None:
    unexplained = re.compile(r"\| `.*\|\s+\|$|- `.*`: *$")
    assert [line for line in PAGES[name].splitlines() if unexplained.match(line)] == []
