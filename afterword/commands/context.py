"""`afterword context`: what an agent would load."""

import asyncio
from typing import Annotated

import typer

from afterword.commands.common import Json, print_json, start_quietly
from afterword.terminal import printable

Conversation = Annotated[str, typer.Argument(help="Id of the conversation.")]
Messages = Annotated[int, typer.Option(min=0, help="How many of the last messages to show.")]


def context(conversation: Conversation, messages: Messages = 4, as_json: Json = False) -> None:
    """Title, rolling summary and the last messages verbatim: what an agent would load. Exit 1 if nothing is known."""
    from afterword.context import load_context

    found = asyncio.run(load_context(start_quietly().mongo, conversation, messages))
    if found is None:
        typer.echo(f"nothing is known of conversation {conversation}", err=True)
        raise typer.Exit(1)
    if as_json:
        print_json(found.as_dict())
    else:
        typer.echo(printable("\n".join(found.lines())))
