"""Helpers that commands share: settings, JSON, tables."""

import json
import logging
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afterword.streams.private import make_files_private
from afterword.streams.visible import printable, shown_json

if TYPE_CHECKING:
    from afterword.streams.settings import Settings

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def start() -> "Settings":
    """Load the settings and send logs to standard error; standard output is for results.

    Files that the process creates from now on are its user's alone. Warns of API keys that are sent unencrypted.
    Raises: ConfigurationError.
    """
    from afterword.streams.logs import configure, log
    from afterword.streams.settings import keys_in_clear, load_settings

    make_files_private()
    settings = load_settings()
    configure(settings.logs)
    for setting, address in keys_in_clear(settings):
        log.warning("api_key_sent_in_clear", setting=setting, address=address, remedy="use an https address")
    return settings


def start_quietly() -> "Settings":
    """Load the settings as `start` does, without the logs of aiokafka: the command reports errors itself."""
    settings = start()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    return settings


def print_json(value: Any) -> None:
    """Print one line of JSON."""
    typer.echo(shown_json(json.dumps(value, ensure_ascii=False)))


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
