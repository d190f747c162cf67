"""Docstrings, descriptions of settings and helps of commands open with a verb or a noun phrase."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("afterword", "consumers", "schemas", "streams")
BARE = frozenset(
    """about after against among as at because before behind between by during for from how if in inside into of on once
    onto over per since than that through to under unless until upon what when where whether which while who whom whose
    why with within without""".split()  # noqa: SIM905 – easier to read
)
"""Words that nothing opens with. One with a hyphen, `At-least-once`, is another word."""
FIRST = re.compile(r"[A-Za-z][A-Za-z'-]*")
DESCRIBED = ("description", "help")


def sources() -> list[Path]:
    """Modules of the product; `afterword/streams` and its like are links to the folders beside it."""
    return [file for folder in PRODUCT for file in (ROOT / folder).rglob("*.py")]


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Docstrings, of attributes too, and descriptions, with their lines."""
    for node in ast.walk(tree):
        found = node.value if isinstance(node, ast.Expr | ast.keyword) else None
        if isinstance(node, ast.keyword) and node.arg not in DESCRIBED:
            continue
        if isinstance(found, ast.Constant) and isinstance(found.value, str):
            yield found.lineno, found.value


def opens_barely(text: str) -> bool:
    word = FIRST.match(text)
    return word is not None and word[0].lower() in BARE


@pytest.mark.parametrize("text", ["Of the two.", "what closes it", "After that, more.", "To\nwhom"])
def test_a_text_that_opens_with_a_bare_word_is_found(text: str) -> None:
    assert opens_barely(text)


@pytest.mark.parametrize("text", ["At-least-once delivery.", "Offset of it.", "`of` it", "{where}: gone", "Total: 3"])
def test_a_text_that_opens_with_another_is_not(text: str) -> None:
    assert not opens_barely(text)


def test_all_of_them_are_read() -> None:
    example = '"""A."""\nx = 1\n"""B."""\nclass C:\n    """C."""\n    y = Field(1, description="d")\n'
    assert [text for _, text in sorted(texts(ast.parse(example)))] == ["A.", "B.", "C.", "d"]


def test_no_text_of_the_product_opens_with_a_bare_preposition_or_wh_word() -> None:
    found = {
        f"{file.relative_to(ROOT)}:{line}": text.splitlines()[0]
        for file in sources()
        for line, text in texts(ast.parse(file.read_text()))
        if opens_barely(text)
    }
    assert found == {}
