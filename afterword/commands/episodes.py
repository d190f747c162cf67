"""`afterword episodes`: what a conversation was cut into."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afterword.commands.common import Json, print_json, print_table, start_quietly

if TYPE_CHECKING:
    from afterword.memory import EpisodePage, StoredEpisode

Conversation = Annotated[str, typer.Argument(help="Id of the conversation.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="Episodes of one page.")]
Before = Annotated[int | None, typer.Option(min=1, help="Only those with a smaller ordinal: the next page.")]
Agent = Annotated[str | None, typer.Option("--agent", help="An agent's part, where episodes are kept by agent.")]

COLUMNS = ("ordinal", "ended", "messages", "tokens", "saved", "made by", "title", "short summary")


def episodes(
    conversation: Conversation, limit: Limit = 20, before: Before = None, agent: Agent = None, as_json: Json = False
) -> None:
    """Show a conversation's episodes, newest first, page by page."""
    page = asyncio.run(_read(conversation, limit, before, agent))
    if as_json:
        print_json({"episodes": [_document(stored) for stored in page.episodes], "next_before": page.next_before})
        return
    if page.episodes:
        print_table(COLUMNS, [_row(stored) for stored in page.episodes])
    else:
        typer.echo("no episodes", err=True)
    if page.next_before:
        typer.echo(f"older ones: --before {page.next_before}", err=True)


async def _read(conversation: str, limit: int, before: int | None, agent: str | None) -> "EpisodePage":
    from afterword.memory import Memory

    async with Memory.from_settings(start_quietly()) as memory:
        return await memory.episodes(conversation, limit, before, agent)


def _document(stored: "StoredEpisode") -> dict[str, Any]:
    more = {"fingerprint": stored.fingerprint, "close_reason": stored.close_reason, "overlap_ids": stored.overlap_ids}
    return {**stored.summary.model_dump(mode="json"), **more}


def _row(stored: "StoredEpisode") -> tuple[str, ...]:
    summary = stored.summary
    made_by = summary.model if summary.quality.source == "llm" else f"fallback: {summary.quality.reason}"
    tokens, saved = summary.compression.tokens_before, f"{summary.compression.ratio:.0%}"
    numbers = (
        str(summary.ordinal),
        f"{summary.ended_at:%Y-%m-%d %H:%M}",
        str(summary.message_count),
        str(tokens),
        saved,
    )
    return (*numbers, made_by, summary.title, summary.short_summary)
