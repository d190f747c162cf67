"""`afterword smoke`: does a deployment do its work?"""

import asyncio
import time
from typing import Annotated

import typer

from afterword.commands.common import Json, print_json, printable, start_quietly

Timeout = Annotated[float, typer.Option(min=1, metavar="SECONDS", help="How long to wait for the summary.")]


def smoke(timeout: Timeout = 120, as_json: Json = False) -> None:
    """Send a short conversation and wait for its summary; both stay in the topics and stores. Exit 1 if none comes."""
    from afterword.smoke import smoke as run

    began = time.monotonic()
    event = asyncio.run(run(start_quietly(), timeout))
    seconds = round(time.monotonic() - began, 1)
    if as_json:
        print_json({"event_id": event.event_id, "source": event.quality.source, "seconds": seconds})
    else:
        typer.echo(printable(f"{event.event_id} after {seconds} s, by {event.quality.source}: {event.short_summary}"))
