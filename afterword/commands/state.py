"""`afterword state`: the segmenter's state in its changelogs."""

import asyncio
from typing import Annotated

import typer

from afterword.commands.common import Json, print_json, start_command
from afterword.streams.visible import shown

app = typer.Typer(help="Find and repair damaged state of the segmenter.", no_args_is_help=True)

ConversationId = Annotated[str, typer.Argument(metavar="CONVERSATION", help="Conversation whose state is rebuilt.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


@app.callback()
def state() -> None:
    """Find and repair damaged state of the segmenter."""


@app.command("list")
def list_quarantined(as_json: Json = False) -> None:
    """Print the conversations in quarantine, one a line: partition, waiting dead letters, what is damaged."""
    from afterword.state import quarantined

    rows = asyncio.run(quarantined(start_command()))
    if not rows and not as_json:
        typer.echo("none is in quarantine", err=True)
    for found in rows:
        if as_json:
            print_json(vars(found))
        else:
            name = "a row of no conversation" if found.conversation_id is None else found.conversation_id
            typer.echo(
                shown(f"{name}  partition {found.partition}, {found.dead_letters:,} dead letters: {found.problem}")
            )


@app.command()
def reset(conversation: ConversationId, yes: Yes = False, as_json: Json = False) -> None:
    """Rebuild the state of one conversation, after its last episode. Stop the segmenters first.

    Its messages that are in no episode are read again, as far as Kafka has them. Then replay its dead letters.
    """
    from afterword.state import reset as run

    settings = start_command()
    if not yes:
        typer.confirm(
            shown(f"Rebuild the state of {conversation}? The segmenters must be stopped."), err=True, abort=True
        )
    for done in asyncio.run(run(settings, conversation)):
        if as_json:
            print_json(done._asdict())
        else:
            typer.echo(
                f"partition {done.partition}: goes on after episode {done.last_ordinal:,}; {done.episodes:,} episodes"
                f" closed, {done.pending:,} messages pending"
            )


@app.command()
def rebuild(yes: Yes = False, as_json: Json = False) -> None:
    """Rebuild the whole state after the changelogs were lost and created again, empty. Stop the segmenters first.

    Conversations go on after their last episode; messages are read again, and those in an episode are passed over.
    """
    from afterword.state import rebuild_state as run

    settings = start_command()
    if not yes:
        typer.confirm(
            "Rebuild the state of every partition without one? The segmenters must be stopped.", err=True, abort=True
        )
    for done in asyncio.run(run(settings)):
        if as_json:
            print_json(done._asdict())
        elif done.left:
            typer.echo(f"partition {done.partition}: has state, which was left as it is")
        else:
            typer.echo(
                f"partition {done.partition}: {done.conversations:,} conversations go on, messages are read from offset"
                f" {done.source:,}"
            )
