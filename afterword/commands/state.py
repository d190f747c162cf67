"""`afterword state`: rebuild the segmenter's state."""

import asyncio
from typing import Annotated

import typer

from afterword.commands.common import Json, print_json, start_command

app = typer.Typer(help="Rebuild the segmenter's state.", no_args_is_help=True)

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


@app.callback()
def state() -> None:
    """Keep the group even if it has a single command."""


@app.command()
def rebuild(yes: Yes = False, as_json: Json = False) -> None:
    """Rebuild the segmenter's state after its changelogs were lost and recreated empty. Stop the segmenters first.

    Conversations continue after their last episode. Messages are read again; those in an episode are skipped.
    """
    from afterword.operating.state import rebuild_state as run

    settings = start_command()
    if not yes:
        typer.confirm(
            "Rebuild the state of every partition without one? The segmenters must be stopped.", err=True, abort=True
        )
    for done in asyncio.run(run(settings)):
        if as_json:
            print_json(done._asdict())
        elif done.left:
            typer.echo(f"partition {done.partition}: already has state, left unchanged")
        else:
            typer.echo(
                f"partition {done.partition}: {done.conversations:,} conversations continue, reading from offset"
                f" {done.source:,}"
            )
