"""Helpers that commands share: settings, JSON, tables."""

import json
import logging
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afterword.streams.private import make_files_private
from afterword.streams.visible import printable, shown_json

if TYPE_CHECKING:
    from afterword.streams.settings import Settings

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

AGO = re.compile(r"(\d+)([smhd])")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


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


def moment(text: str) -> datetime:
    """Parse RFC 3339, or `90s`, `15m`, `2h`, `3d` ago. Raises: BadParameter."""
    if found := AGO.fullmatch(text):
        return datetime.now(UTC) - timedelta(**{UNITS[found[2]]: int(found[1])})
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither an RFC 3339 time nor a duration such as 15m, 2h or 3d") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def many(count: int, one: str, more: str) -> str:
    """Count something, in its singular or plural."""
    return f"{count:,} {one if count == 1 else more}"


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
