"""Reads the fenced blocks of a page, and the comments that exclude them from tests."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

BLOCK = re.compile(
    r"^ *(?:<!-- not run: (?P<reason>[^\n]+?) -->\n *)?```(?P<language>\w*)\n(?P<code>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
SAVED = re.compile(r"Save this as `([^`]+)`")
COMMANDS = ("", "sh")
"""Languages of the blocks that hold commands for a terminal."""


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    code: str
    reason: str | None
    """The reason why the block is not run; None if it is run."""
    file: str | None
    """The file in which the page says to save the block."""

    def __str__(self) -> str:
        return f"{self.page}: {self.code.splitlines()[0]}"


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page in order."""
    text = page.read_text()
    end = 0
    for found in BLOCK.finditer(text):
        saved = SAVED.search(text, end, found.start())
        code = dedent(found["code"])
        yield Block(page.name, found["language"], code, found["reason"], saved[1] if saved else None)
        end = found.end()
