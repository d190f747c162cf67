"""`afterword watch`: print summaries as they arrive."""

import asyncio
import sys
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from afterword.commands.common import Json, start_command, written_by
from afterword.streams.text.visible import printable, shown, shown_json

if TYPE_CHECKING:
    from afterword.schemas import SummaryCreated, SummaryDeleted

FromBeginning = Annotated[bool, typer.Option("--from-beginning", help="Start with the oldest summary on the topic.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Stop after this many.")]


def watch(from_beginning: FromBeginning = False, limit: Limit = None, as_json: Json = False) -> None:
    """Print summaries, revisions and deletions as they arrive, until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        asyncio.run(_watch(from_beginning, limit, as_json))


async def _watch(from_beginning: bool, limit: int | None, as_json: bool) -> None:
    from afterword.reading.watch import watch as events

    count = 0
    async with aclosing(events(start_command(), from_beginning)) as found:
        async for event in found:
            _print(event, as_json)
            count += 1
            if count == limit:
                return


def _print(event: "SummaryCreated | SummaryDeleted", as_json: bool) -> None:
    from afterword.schemas import SummaryDeleted

    if as_json:
        typer.echo(shown_json(event.to_json().decode()))
    elif isinstance(event, SummaryDeleted):
        typer.echo(shown(f"{event.episode_id}  {_revision(event)}: deleted"))
    elif sys.stdout.isatty():
        _print_panel(event)
    else:
        revised = f"  {_revision(event)}" if event.revision > 1 else ""
        typer.echo(shown(f"{event.episode_id}{revised}  {event.title}: {event.short_summary}"))


def _revision(event: "SummaryCreated | SummaryDeleted") -> str:
    return f"revision {event.revision}" + (f" ({event.reason})" if event.reason else "")


def _print_panel(event: "SummaryCreated") -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    revised = [_revision(event)] if event.revision > 1 else []
    footer = " · ".join([event.episode_id, *revised, f"{event.message_count} messages", written_by(event)])
    # as Text, so that user content is not read as markup
    text, title, subtitle = map(Text, (printable(event.short_summary), shown(event.title), shown(footer)))
    Console().print(Panel(text, title=title, subtitle=subtitle, title_align="left"))
