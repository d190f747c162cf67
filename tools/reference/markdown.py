"""Tables in Markdown."""

from collections.abc import Iterable

NOTHING = "–"
"""Text of a cell without a value."""


def table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(row(cells) for cells in (columns, ("---",) * len(columns), *rows))


def row(cells: Iterable[str]) -> str:
    """One line of a table; a bar or a line break in a cell does not break it."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |\n"
