"""What commands share."""

import json
import logging
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from streams.settings import Settings

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def start() -> "Settings":
    """The settings, with logs going to standard error: standard output is for results.

    Raises: ConfigurationError.
    """
    from streams.logs import configure
    from streams.settings import load

    settings = load()
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
