"""`afterword topics`: what Afterword needs on the broker."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from afterword.commands.common import Json, print_json, start_quietly

if TYPE_CHECKING:
    from afterword.topics import TopicReport

app = typer.Typer(help="Create or verify topics.", no_args_is_help=True)


@app.callback()
def topics() -> None:
    """Create or verify topics."""


@app.command()
def create(as_json: Json = False) -> None:
    """Create the topics that are missing and compare the others; may be repeated. Exit 1 if one is wrong."""
    from afterword.topics import ensure_topics

    reports = asyncio.run(ensure_topics(start_quietly()))
    if as_json:
        print_json([asdict(report) for report in reports])
    else:
        _print(reports)
    if not all(report.fine for report in reports):
        raise typer.Exit(1)


def _print(reports: Sequence["TopicReport"]) -> None:
    width = max(len(report.name) for report in reports)
    for report in reports:
        typer.echo(f"{report.name:<{width}}  {report.status}" + (f": {report.detail}" if report.detail else ""))
