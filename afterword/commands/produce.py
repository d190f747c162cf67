"""`afterword produce`: send messages to Kafka."""

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from afterword.commands.common import STANDARD_INPUT, Json, opened, print_json, progress_bar, start_command
from afterword.streams.text.visible import many, shown

if TYPE_CHECKING:
    from afterword.streams.settings import Settings
    from afterword.writing.produce import InvalidLine, Produced, ProduceOptions

File = Annotated[str, typer.Argument(metavar="FILE", help="JSON Lines; - reads standard input.")]
Rate = Annotated[float | None, typer.Option(min=0.001, help="Maximum records per second.")]
FlushAtEnd = Annotated[
    bool, typer.Option("--flush", help="Close the pending messages of each conversation at the end.")
]
SkipInvalid = Annotated[bool, typer.Option("--skip-invalid", help="Skip invalid lines.")]


def produce(
    file: File,
    rate: Rate = None,
    flush: FlushAtEnd = False,
    skip_invalid: SkipInvalid = False,
    as_json: Json = False,
) -> None:
    """Send messages to the topic `messages`, one JSON object per line.

    A line is a message, an edit, a deletion or a flush. A file is checked before anything is sent. Standard input is
    sent up to the first invalid line.
    """
    from afterword.writing.produce import LinesInvalid, ProduceOptions

    options = ProduceOptions(rate=rate, flush=flush, skip_invalid=skip_invalid)
    try:
        produced = _produce(start_command(), file, options, show_progress=not as_json)
    except LinesInvalid as error:
        _print_invalid(error.first, error.found)
        sent = "the lines before it were sent" if file == STANDARD_INPUT else "nothing was sent"
        typer.echo(f"{sent}; --skip-invalid leaves out invalid lines", err=True)
        raise typer.Exit(1) from None
    except OSError as error:
        typer.echo(f"afterword: {file}: {error.strerror}", err=True)
        raise typer.Exit(1) from None
    _report(produced, as_json)


def _produce(settings: "Settings", file: str, options: "ProduceOptions", show_progress: bool) -> "Produced":
    with opened(file) as lines:
        total = _checked_total(lines, options)
        with progress_bar("messages", total, show_progress and total is not None) as (show, _):
            return asyncio.run(_send(settings, lines, options, lambda produced: show(produced.messages)))


async def _send(
    settings: "Settings", lines: BinaryIO, options: "ProduceOptions", progress: Callable[["Produced"], None]
) -> "Produced":
    from afterword.streams.telemetry.tracing import tracer_from
    from afterword.version import running_version
    from afterword.writing.produce import produce as send
    from afterword.writing.produce import read_lines

    async with tracer_from(os.environ, "produce", running_version()) as tracer:
        return await send(settings, read_lines(lines), options, progress, tracer)


def _checked_total(lines: BinaryIO, options: "ProduceOptions") -> int | None:
    """Count the messages in a file; None if it cannot be read twice. Raises: LinesInvalid, unless they are skipped."""
    from afterword.writing.produce import LinesInvalid, bounded_lines, check_lines, is_regular

    if not is_regular(lines):
        return None
    found = check_lines(bounded_lines(lines))
    lines.seek(0)
    if found.invalid and not options.skip_invalid:
        raise LinesInvalid(found.first_invalid, found.invalid)
    return found.messages


def _report(produced: "Produced", as_json: bool) -> None:
    if as_json:
        print_json(produced.as_dict())
    else:
        _print_counts(**produced.as_dict())
    _print_invalid(produced.first_invalid, produced.invalid)


def _print_counts(conversations: int, messages: int, flushes: int, amendments: int, seconds: float, **_: int) -> None:
    flushed = f", {many(flushes, 'flush', 'flushes')}" if flushes else ""
    flushed += f", {many(amendments, 'edit or deletion', 'edits and deletions')}" if amendments else ""
    sent = f"{many(messages, 'message', 'messages')} of {many(conversations, 'conversation', 'conversations')}"
    typer.echo(f"{sent}{flushed} in {seconds:.1f} s")


def _print_invalid(first: list["InvalidLine"], found: int) -> None:
    for line in first:
        typer.echo(shown(str(line)), err=True)
    if found > len(first):
        typer.echo(f"… {found - len(first):,} more invalid lines", err=True)
