"""`afterword summaries`: redo stored summaries."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from afterword.commands.common import Json, moment, print_json, print_table, start_command
from afterword.streams.text.visible import shown

if TYPE_CHECKING:
    from afterword.operating.redo import RedoCounts, RedoPlan, Wanted

app = typer.Typer(help="Redo stored summaries.", no_args_is_help=True)

Since = Annotated[
    datetime | None,
    typer.Option(parser=moment, help="Only if they ended since this time, or in the last 2h, 3d."),
]
OfConversation = Annotated[str | None, typer.Option(help="Only in this conversation.")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD=VALUE",
        help="Only summaries with this value, such as quality.source=fallback, prompt_version=… or model=…; null "
        "means none. Repeatable.",
    ),
]
InFlight = Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of concurrent requests.")]
GiveUp = Annotated[float, typer.Option(min=0.01, help="Stop after this long without a new summary.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be redone without changing anything.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


@app.callback()
def summaries() -> None:
    """Redo stored summaries."""


@app.command()
def redo(
    since: Since = None,
    conversation: OfConversation = None,
    where: Where = None,
    in_flight: InFlight = 8,
    give_up_minutes: GiveUp = 120,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Have the LLM rewrite summaries that were made with another prompt or model.

    The summarizers do the work from the archived messages, within their budgets; run this with their settings. It can
    be stopped and run again. Exit 1 if some summaries stay as they are.
    """
    from afterword.operating.redo import plan
    from afterword.operating.redo import redo as run

    wanted, settings = _wanted(since, conversation, where or []), start_command()
    found = asyncio.run(plan(settings, wanted))
    if dry_run or not found.episodes:
        _print_plan(found, as_json)
        return
    if not yes:
        _print_plan(found, as_json=False, err=True)
        typer.confirm(f"Let the LLM redo {found.episodes:,} summaries?", err=True, abort=True)
    with _progress(found.episodes) as progress:
        done = asyncio.run(run(settings, wanted, in_flight, give_up_minutes * 60, progress))
    if as_json:
        print_json(done.as_dict())
    else:
        typer.echo(_line(done))
    if done.kept:
        raise typer.Exit(1)


def _wanted(since: datetime | None, conversation: str | None, where: list[str]) -> "Wanted":
    from afterword.operating.redo import Wanted, parse_condition

    try:
        return Wanted(since, conversation, tuple(map(parse_condition, where)))
    except ValueError as error:
        raise typer.BadParameter(shown(str(error)), param_hint="--where") from None


def _print_plan(found: "RedoPlan", as_json: bool, err: bool = False) -> None:
    if as_json:
        made_by = [{**maker._asdict(), "summaries": number} for maker, number in found.by_maker.items()]
        print_json({"summaries": found.episodes, "message_tokens": found.tokens, "made_by": made_by})
        return
    if found.by_maker and not err:
        rows = [(maker.model, maker.prompt_version or "", f"{number:,}") for maker, number in found.by_maker.items()]
        print_table(("model", "prompt", "summaries"), rows)
    typer.echo(f"{found.episodes:,} summaries of {found.tokens:,} tokens of messages", err=err)


def _line(done: "RedoCounts") -> str:
    others = (
        (done.kept, "kept, because the LLM's answers were unusable"),
        (done.not_archived, "kept, because their messages are not in the archive"),
        (done.gone, "deleted meanwhile"),
    )
    return ", ".join([f"{done.redone:,} redone", *(f"{number:,} {what}" for number, what in others if number)])


@contextmanager
def _progress(total: int) -> Iterator[Callable[["RedoCounts"], None]]:
    if not sys.stderr.isatty():
        yield _paused_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def show(done: "RedoCounts") -> None:
            completed = done.redone + done.kept + done.not_archived + done.gone
            bar.update(task, completed=completed, description=_pause(done))

        yield show


def _paused_lines() -> Callable[["RedoCounts"], None]:
    paused = False

    def show(done: "RedoCounts") -> None:
        nonlocal paused
        if (done.pause_seconds > 0) != paused:
            paused = not paused
            if paused:
                typer.echo(f"{done.redone:,} redone; {_pause(done)}", err=True)

    return show


def _pause(done: "RedoCounts") -> str:
    if not done.pause_seconds:
        return ""
    return f"the summarizers could not make the last ones; next request in {done.pause_seconds:.0f} s"
