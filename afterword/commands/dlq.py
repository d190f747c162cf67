"""`afterword dlq`: the records that could not be taken."""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from afterword.commands.common import Json, print_json, start_quietly
from afterword.terminal import printable

if TYPE_CHECKING:
    from afterword.dlq.desk import Counts, Desk
    from afterword.dlq.letters import Action, Filters

app = typer.Typer(help="List, show, replay or discard dead letters.", no_args_is_help=True)

AGO = re.compile(r"(\d+)([smhd])")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment(text: str) -> datetime:
    """RFC 3339, or `90s`, `15m`, `2h`, `3d` ago. Raises: BadParameter."""
    if found := AGO.fullmatch(text):
        return datetime.now(UTC) - timedelta(**{UNITS[found[2]]: int(found[1])})
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a time nor like 15m, 2h or 3d") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


Topic = Annotated[str | None, typer.Option(help="Only of this topic of dead letters.")]
Stage = Annotated[str | None, typer.Option(help="Only of this stage: segmenter or summarizer.")]
Type = Annotated[str | None, typer.Option("--type", help="Only of this error type, such as schema_violation.")]
Since = Annotated[datetime | None, typer.Option(parser=moment, help="Failed since then: a time, or 15m, 2h, 3d ago.")]
Until = Annotated[datetime | None, typer.Option(parser=moment, help="Failed before then.")]
Conversation = Annotated[str | None, typer.Option(help="Only of this conversation.")]
Limit = Annotated[int | None, typer.Option(min=1, help="End after so many.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Raw = Annotated[bool, typer.Option("--raw", help="Only the value, byte for byte.")]
Address = Annotated[str, typer.Argument(metavar="TOPIC/PARTITION/OFFSET", help="As `list` prints it.")]


@app.callback()
def dlq() -> None:
    """List, show, replay or discard dead letters."""


@app.command("list")
def list_letters(
    topic: Topic = None,
    stage: Stage = None,
    error_type: Type = None,
    since: Since = None,
    until: Until = None,
    conversation: Conversation = None,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Print the letters that were neither replayed nor discarded, one a line; with --json as JSON Lines."""
    from afterword.dlq.shown import line, row

    filters = _filters(stage, error_type, since, until, conversation)

    async def each(desk: "Desk", topics: Sequence[str]) -> None:
        left = limit
        for name in topics:
            async with aclosing(desk.open_letters(name, filters)) as letters:
                async for found in letters:
                    if as_json:
                        print_json(row(found))
                    else:
                        typer.echo(line(found))
                    left = left and left - 1
                    if left == 0:
                        return

    _at_desk(topic, each)


@app.command()
def show(address: Address, raw: Raw = False, as_json: Json = False) -> None:
    """Print one letter: why it is there, its headers, and its value."""
    from afterword.dlq.shown import page, whole

    async def one(desk: "Desk", _: Sequence[str]) -> None:
        found = await desk.find(address)
        if raw:
            sys.stdout.buffer.write(found.value or b"")
        elif as_json:
            print_json(whole(found))
        else:
            typer.echo(page(found))

    _at_desk(None, one)


@app.command()
def replay(
    topic: Topic = None,
    stage: Stage = None,
    error_type: Type = None,
    since: Since = None,
    until: Until = None,
    conversation: Conversation = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Send the originals again, key and value untouched, to the partitions they were on; each once, and on record.

    Mend what refused them first: what cannot be taken still comes back as a new letter.
    """
    filters = _filters(stage, error_type, since, until, conversation)
    _resolve(topic, filters, "replayed", dry_run=dry_run, yes=yes, as_json=as_json)


@app.command()
def discard(
    topic: Topic = None,
    stage: Stage = None,
    error_type: Type = None,
    since: Since = None,
    until: Until = None,
    conversation: Conversation = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Put letters away: they are listed and replayed no more. The records stay until the topic's retention."""
    filters = _filters(stage, error_type, since, until, conversation)
    _resolve(topic, filters, "discarded", dry_run=dry_run, yes=yes, as_json=as_json)


def _filters(
    stage: str | None,
    error_type: str | None,
    since: datetime | None,
    until: datetime | None,
    conversation: str | None,
) -> "Filters":
    from afterword.dlq.letters import Filters

    return Filters(stage, error_type, since, until, conversation)


def _at_desk(topic: str | None, work: "Callable[[Desk, Sequence[str]], Awaitable[None]]") -> None:
    from afterword.dlq.desk import desk, letter_topics

    kafka = start_quietly().kafka
    topics = letter_topics(kafka)
    if topic is not None and topic not in topics:
        raise typer.BadParameter(f"{topic!r} is not one of {', '.join(topics)}", param_hint="--topic")

    async def run() -> None:
        async with desk(kafka) as opened:
            await work(opened, [topic] if topic else topics)

    asyncio.run(run())


def _resolve(
    topic: str | None, filters: "Filters", action: "Action", *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    async def work(desk: "Desk", topics: Sequence[str]) -> None:
        planned = {name: await desk.count(name, filters, action) for name in topics}
        total = sum(counts.resolved for counts in planned.values())
        if dry_run or not total or not (yes or _confirmed(planned, action)):
            _report(planned, f"would be {action}", as_json)
            return
        with _progress(total, shown=not as_json) as progress:
            done = {name: await desk.resolve(name, filters, action, progress) for name in topics}
        _report(done, action, as_json)

    _at_desk(topic, work)


def _confirmed(planned: "dict[str, Counts]", action: "Action") -> bool:
    _report(planned, f"would be {action}", as_json=False)
    return typer.confirm("Go on?", err=True)


def _report(found: "dict[str, Counts]", done: str, as_json: bool) -> None:
    if as_json:
        named = {name: {**vars(counts), "by_type": dict(counts.by_type)} for name, counts in found.items()}
        print_json({"outcome": done, "topics": named})
        return
    for name, counts in found.items():
        types = ", ".join(f"{printable(kind)} {number:,}" for kind, number in counts.by_type.most_common())
        foreign = f"; {counts.not_ours:,} not ours, left alone" if counts.not_ours else ""
        typer.echo(f"{name}: {counts.resolved:,} {done}{f' ({types})' if types else ''}{foreign}")


@contextmanager
def _progress(total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    if not shown or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("letters", total=total)
        yield lambda resolved: bar.advance(task, resolved)
