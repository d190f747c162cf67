"""Tables in Markdown."""

from collections.abc import Iterable

NOTHING = "–"
"""Text of an empty cell."""


def table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(row(cells) for cells in (columns, ("---",) * len(columns), *rows))


def row(cells: Iterable[str]) -> str:
    """Return one line of a table. Bars and line breaks in a cell are escaped."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |\n"
