"""What commands share."""

import json
import logging
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afterword.terminal import printable

if TYPE_CHECKING:
    from afterword.streams.settings import Settings

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def start() -> "Settings":
    """The settings, with logs going to standard error: standard output is for results.

    Raises: ConfigurationError.
    """
    from afterword.streams.logs import configure
    from afterword.streams.settings import load_settings

    settings = load_settings()
    configure(settings.logs)
    return settings


def start_quietly() -> "Settings":
    """As `start`, for a command that reports by itself what the client's library would complain about."""
    settings = start()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    return settings


def print_json(value: Any) -> None:
    """One line."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """On a terminal a table; else a row a line, its cells separated by tabs."""
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
        table.add_row(*(Text(cell) for cell in row))  # as text: what people wrote must not be read as markup
    Console().print(table)
