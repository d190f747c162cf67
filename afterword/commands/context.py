"""`afterword context`: what an agent would load."""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from afterword.commands.common import Json, print_json, printable, start_quietly

if TYPE_CHECKING:
    from afterword.memory import Context

Conversation = Annotated[str, typer.Argument(help="Id of the conversation.")]
Messages = Annotated[
    int | None,
    typer.Option(min=0, help="How many of the last messages; by default as the trigger's preset says, or 4."),
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="No more tokens than this.")]
Agent = Annotated[str | None, typer.Option("--agent", help="An agent's part, where episodes are kept by agent.")]


def context(
    conversation: Conversation,
    messages: Messages = None,
    max_tokens: MaxTokens = 3500,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Title, rolling summary and the last messages verbatim: what an agent would load. Exit 1 if nothing is known."""
    found = asyncio.run(_read(conversation, messages, max_tokens, agent))
    if found is None:
        typer.echo(f"nothing is known of conversation {printable(conversation)}", err=True)
        raise typer.Exit(1)
    if as_json:
        print_json(found.as_dict())
    else:
        typer.echo(printable("\n".join(lines(found))))


async def _read(conversation: str, messages: int | None, max_tokens: int, agent: str | None) -> "Context | None":
    from afterword.memory import Memory

    async with Memory.from_settings(start_quietly()) as memory:
        return await memory.context(conversation, messages, max_tokens, agent)


def lines(found: "Context") -> Iterator[str]:
    """For people."""
    yield found.title or "(no summary yet)"
    yield ""
    summaries = [text for text in (found.rolling_summary, *found.recent_summaries) if text]
    if summaries:
        yield from summaries
        yield ""
    if found.omitted:
        yield f"({found.omitted} earlier messages do not fit)"
    yield from (f"{message.role}: {message.content}" for message in found.messages)
    yield ""
    saved = f", {found.compression:.1%} less" if found.compression > 0 else ""
    yield f"{found.tokens:,} of {found.tokens_full:,} tokens{saved}; {found.events} of {found.events_full} events"
