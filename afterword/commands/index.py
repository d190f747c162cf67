"""`afterword index`: the search index."""

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from afterword.commands.common import Json, print_json, printable, start_quietly

if TYPE_CHECKING:
    from afterword.rebuild import Rebuilt

app = typer.Typer(help="The search index.", no_args_is_help=True)

After = Annotated[str | None, typer.Option("--after", metavar="EPISODE", help="Begin after this episode id.")]
Everything = Annotated[bool, typer.Option("--all", help="Also write what is indexed already.")]


@app.callback()
def index() -> None:
    """The search index."""


@app.command("rebuild")
def rebuild(after: After = None, everything: Everything = False, as_json: Json = False) -> None:
    """Index what MongoDB has and Qdrant has not; with --all, write everything anew. Run it again if it was stopped."""
    from afterword.rebuild import rebuild as run

    done = asyncio.run(run(start_quietly(), _show, after, everything))
    if as_json:
        print_json(asdict(done))
    else:
        typer.echo(f"{done.seen} episodes, {done.written} written, {done.seen - done.written} indexed already")
    if done.incomplete:
        typer.echo(f"{done.incomplete} of them have messages that are not in the archive (yet)", err=True)


def _show(done: "Rebuilt") -> None:
    typer.echo(printable(f"{done.seen} episodes, up to {done.last}"), err=True)
