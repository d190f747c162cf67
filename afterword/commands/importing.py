"""`afterword import`: send a history from elsewhere to Kafka."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afterword.commands.common import Json, print_json, start_command
from afterword.streams.visible import many, shown

if TYPE_CHECKING:
    from afterword.importing.files import Opened
    from afterword.importing.outcomes import Rejected
    from afterword.importing.position import ImportPosition
    from afterword.importing.run import ImportPlan

INTERRUPTED = 130
"""Exit code of a program that SIGINT ended, as shells have it."""


class Format(StrEnum):
    """Names of the formats, as in `afterword.importing.formats`, which is imported only when a command runs."""

    chatgpt = "chatgpt"
    messages = "messages"
    slack = "slack"
    jsonl = "jsonl"


Which = Annotated[
    Format,
    typer.Argument(
        metavar="FORMAT",
        help="chatgpt, slack, messages (lists in the style of OpenAI or LangGraph), or jsonl (our own).",
    ),
]
History = Annotated[
    Path, typer.Argument(metavar="FILE", exists=True, help="The file, its zip archive, or a directory.")
]
User = Annotated[
    str | None,
    typer.Option(metavar="ID", help="User of the conversations, where the file names none; chatgpt needs it."),
]
Tenant = Annotated[str | None, typer.Option(metavar="ID", help="Tenant of all messages.")]
Prefix = Annotated[str, typer.Option(help="Put this before the ids of conversations.")]
Flush = Annotated[bool, typer.Option(help="Close the pending messages of each conversation at its end.")]
CheckArchive = Annotated[bool, typer.Option(help="Leave out messages that the archive in MongoDB has.")]
Rate = Annotated[float | None, typer.Option(min=0.001, help="Maximum records per second.")]
PositionFile = Annotated[
    Path | None,
    typer.Option(
        "--position", metavar="FILE", help="File that keeps how far it has come; else FILE.position beside it."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Read and count, and send nothing.")]


def import_history(
    format_: Which,
    file: History,
    user: User = None,
    tenant: Tenant = None,
    prefix: Prefix = "",
    flush: Flush = True,
    check_archive: CheckArchive = True,
    rate: Rate = None,
    position_file: PositionFile = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Send a history to the topic `messages`, with its own times. Run it again if it was interrupted: it goes on.

    What cannot be read is named on standard error and counted; then the exit code is 1.
    """
    from afterword.importing.outcomes import ImportOptions
    from afterword.importing.run import ImportPlan

    if format_ is Format.chatgpt and user is None:
        raise typer.BadParameter(
            "chatgpt names no user: give the id that your application has for them", param_hint="--user"
        )
    plan = ImportPlan(format_.value, ImportOptions(user, tenant, prefix), flush, check_archive, rate)
    position_file = position_file or _beside(file)
    started = time.monotonic()
    try:
        done = _run(plan, file, position_file, dry_run, show_progress=not as_json)
    except OSError as error:
        typer.echo(f"afterword: {shown(str(error.filename or file))}: {error.strerror}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("afterword: interrupted; run the same command again to go on", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if done is None:
        typer.echo(f"imported before; to read it again, remove {shown(str(position_file))}", err=True)
        return
    _print_counts(done, time.monotonic() - started, dry_run, as_json)
    if done.counts.rejected:
        raise typer.Exit(1)


def _beside(file: Path) -> Path:
    whole = file.resolve()
    return whole.with_name(f"{whole.name}.position")


def _run(
    plan: "ImportPlan", file: Path, position: Path, dry_run: bool, *, show_progress: bool
) -> "ImportPosition | None":
    from afterword.importing.files import open_history
    from afterword.importing.run import count_history

    settings = start_command()
    with open_history(file) as files, _progress(files if show_progress else None) as (progress, report):
        if dry_run:
            return count_history(plan, files, progress, report)

        async def send() -> "ImportPosition | None":
            from afterword.importing.run import import_history
            from afterword.streams.telemetry.tracing import tracer_from
            from afterword.version import running_version

            async with tracer_from(os.environ, "import", running_version()) as tracer:
                return await import_history(settings, plan, files, position, progress, report, tracer)

        return asyncio.run(send())


@contextmanager
def _progress(
    files: "Opened | None",
) -> "Iterator[tuple[Callable[[ImportPosition], None], Callable[[Rejected], None]]]":
    """Show a bar of the bytes read, on a terminal, and above it what was rejected."""
    if files is None or not sys.stderr.isatty():
        yield lambda _: None, _print_rejected
        return
    from rich.console import Console
    from rich.progress import Progress

    opened = files
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("import", total=opened.total_bytes)

        def show(position: "ImportPosition") -> None:
            bar.update(task, completed=opened.bytes_read, description=f"{position.counts.messages:,} messages")

        yield show, lambda rejected: bar.console.print(shown(str(rejected)), markup=False, highlight=False)


def _print_rejected(rejected: "Rejected") -> None:
    typer.echo(shown(str(rejected)), err=True)


def _print_counts(done: "ImportPosition", seconds: float, dry_run: bool, as_json: bool) -> None:
    counts = done.counts
    if as_json:
        found: dict[str, Any] = {**vars(counts), "left_out": dict(counts.left_out), "seconds": round(seconds, 3)}
        print_json(found)
        return
    verb = "would be sent" if dry_run else "sent"
    flushed = f", {many(counts.flushes, 'flush', 'flushes')}" if counts.flushes else ""
    typer.echo(f"{many(counts.messages, 'message', 'messages')} {verb}{flushed} in {seconds:.1f} s")
    if counts.known:
        typer.echo(f"{counts.known:,} were in the archive already")
    for reason, number in counts.left_out.most_common():
        typer.echo(f"{number:,} left out: {reason}")
    if counts.rejected:
        typer.echo(f"{counts.rejected:,} rejected", err=True)
