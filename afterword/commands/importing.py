"""`afterword import`: send a chat history from elsewhere to Kafka."""

import asyncio
import os
import time
from contextlib import ExitStack
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from afterword.commands.common import Json, opened, print_json, progress_bar, start_command
from afterword.streams.text.visible import many, shown

if TYPE_CHECKING:
    from afterword.writing.importing.outcomes import Rejected
    from afterword.writing.importing.run import ImportCounts, ImportPlan

INTERRUPTED = 130
"""Exit code of a program ended by SIGINT, following the shells' convention."""


class Format(StrEnum):
    """Names of the formats in `afterword.writing.importing.run`, which is only imported when a command runs."""

    chatgpt = "chatgpt"
    claude = "claude"
    messages = "messages"
    jsonl = "jsonl"


Which = Annotated[
    Format,
    typer.Argument(
        metavar="FORMAT",
        help="chatgpt or claude (conversations.json of their exports), messages (lists in the formats of OpenAI, "
        "Anthropic and LangGraph), or jsonl (our own).",
    ),
]
Files = Annotated[list[str], typer.Argument(metavar="FILE...", help="JSON files; - reads standard input.")]
User = Annotated[
    str | None,
    typer.Option(metavar="ID", help="User of records that do not name one; chatgpt needs it."),
]
Tenant = Annotated[str | None, typer.Option(metavar="ID", help="Tenant of all messages.")]
Prefix = Annotated[str, typer.Option(help="Prefix for the conversation ids.")]
Flush = Annotated[bool, typer.Option(help="Close the pending messages of each conversation at its end.")]
Rate = Annotated[float | None, typer.Option(min=0.001, help="Maximum records per second.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Read and count only; send nothing.")]


def import_history(
    format_: Which,
    files: Files,
    user: User = None,
    tenant: Tenant = None,
    prefix: Prefix = "",
    flush: Flush = True,
    rate: Rate = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Send a history to the topic `messages` with its original times. Running it again sends only what is missing.

    Every message is sent, counted as a duplicate, or named on standard error with the reason and exit code 1.
    """
    from afterword.writing.importing.outcomes import ImportOptions
    from afterword.writing.importing.run import ImportPlan

    if format_ is Format.chatgpt and user is None:
        raise typer.BadParameter(
            "chatgpt exports name no user: give your application's id for this person", param_hint="--user"
        )
    plan = ImportPlan(format_.value, ImportOptions(user, tenant, prefix), flush, rate)
    started = time.monotonic()
    try:
        counts = _run(plan, files, dry_run, show_progress=not as_json)
    except OSError as error:
        typer.echo(f"afterword: {shown(str(error.filename or 'input'))}: {error.strerror}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("afterword: interrupted; run the same command again to send the rest", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _print_counts(counts, time.monotonic() - started, dry_run, as_json)
    if counts.rejected:
        raise typer.Exit(1)


def _run(plan: "ImportPlan", names: list[str], dry_run: bool, *, show_progress: bool) -> "ImportCounts":
    from afterword.writing.importing.run import count_history, import_history, read_history

    settings = start_command()
    with ExitStack() as running:
        files = [(name, running.enter_context(opened(name))) for name in names]
        show, echo = running.enter_context(progress_bar("messages", None, show_progress))
        outcomes = read_history(plan, iter(files))

        def progress(counts: "ImportCounts") -> None:
            show(counts.read)

        def report(rejected: "Rejected") -> None:
            echo(shown(str(rejected)))

        async def send() -> "ImportCounts":
            from afterword.streams.telemetry.tracing import tracer_from
            from afterword.version import running_version

            async with tracer_from(os.environ, "import", running_version()) as tracer:
                return await import_history(settings, plan, outcomes, progress, report, tracer)

        return asyncio.run(count_history(plan, outcomes, progress, report) if dry_run else send())


def _print_counts(counts: "ImportCounts", seconds: float, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {"read": counts.read, **vars(counts), "left_out": dict(counts.left_out), "seconds": round(seconds, 3)}
        )
        return
    for reason, number in counts.left_out.most_common():
        typer.echo(f"{number:,} left out: {reason}")
    if counts.flushes:
        typer.echo(f"{many(counts.flushes, 'conversation', 'conversations')} flushed")
    sent, duplicates = "would be sent" if dry_run else "sent", many(counts.duplicates, "duplicate", "duplicates")
    sums = f"{counts.sent:,} {sent}, {duplicates}, {counts.rejected:,} rejected"
    typer.echo(f"{many(counts.read, 'message', 'messages')} read in {seconds:.1f} s: {sums}")
