"""`afterword schema`: schemas of the events."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Export the events' schemas.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(help="Directory to write to.")]
Check = Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if a file is missing or stale.")]


@app.callback()
def schema() -> None:
    """Export the events' schemas."""


@app.command()
def export(directory: Directory = Path("schemas/generated"), check: Check = False) -> None:
    """Write a JSON Schema (2020-12) for each event, and an AsyncAPI 3.1 document of the configured topics."""
    from afterword.contract import export, stale
    from afterword.streams.settings import load_settings

    kafka = load_settings().kafka
    for name in stale(directory, kafka) if check else export(directory, kafka):
        typer.echo(f"{directory / name}{' is stale' if check else ''}")
    if check and stale(directory, kafka):
        raise typer.Exit(1)
