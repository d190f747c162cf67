"""Helpers that commands share: settings, JSON, tables, safe text."""

import json
import logging
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from afterword.streams.settings import Settings

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def start() -> "Settings":
    """Load the settings and send logs to standard error; standard output is for results.

    Raises: ConfigurationError.
    """
    from afterword.streams.logs import configure
    from afterword.streams.settings import load_settings

    settings = load_settings()
    configure(settings.logs)
    return settings


def start_quietly() -> "Settings":
    """Load the settings as `start` does, without the logs of aiokafka: the command reports errors itself."""
    settings = start()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    return settings


def print_json(value: Any) -> None:
    """Print one line of JSON."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table on a terminal, otherwise lines of tab-separated cells."""
    shown = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(columns, shown)
    else:
        for row in shown:
            typer.echo("\t".join(" ".join(cell.split()) for cell in row))


def _print_rich(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # as text: user content must not be read as markup
    Console().print(table)


MOVED_OR_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Control characters, which can start a terminal's escape sequence; format characters, which reverse or hide text."""
KEPT = {"\n", "\t", "\u200c", "\u200d"}
"""Persian, Hindi and emoji need the two joiners."""


def printable(text: str) -> str:
    """Replace characters that a terminal would obey, or that hide text, by �."""
    return "".join("\ufffd" if c not in KEPT and unicodedata.category(c) in MOVED_OR_HIDDEN else c for c in text)
