"""`afterword audit`: is the promise kept?"""

import asyncio
from typing import Annotated

import typer

from afterword.commands.common import Json, print_json, printable, start_quietly

Wait = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="First wait until all is consumed and what is closed summarised."),
]


def audit(wait: Wait = 0, as_json: Json = False) -> None:
    """Report every message that is lost, duplicated, out of order or not yet summarised.

    Reads all topics and stores; may run beside the workers. Exit 1 if anything is lost, duplicated or conflicting.
    """
    from afterword.audit import run

    report = asyncio.run(run(start_quietly(), wait_seconds=wait))
    if as_json:
        print_json(report.as_dict())
    else:
        typer.echo("\n".join(map(printable, report.lines())))
    if not report.clean:
        raise typer.Exit(1)
