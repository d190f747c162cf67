"""`afterword dlq`: inspect and resolve dead letters."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afterword.commands.common import Conversation, DryRun, Json, Since, Yes, start_command, use
from afterword.terminal import counting, print_json, print_table
from afterword_text.visible import printable, shown

if TYPE_CHECKING:
    from afterword.operating.dlq import Action, DeadLetterCounts, DeadLetterQueue
    from afterword.schemas.dead_letters import DeadLetter

PAGE = 500
"""Number of dead letters per table."""
NONE = "no dead letters"
COLUMNS = ("address", "failed", "stage", "type", "key", "problem")
REPLAY = """Send the original records again, unchanged, to their original partitions. Each can be replayed once.

Fix the cause first: a record that is still rejected becomes a new dead letter.
"""
DISCARD = """Mark dead letters as discarded, so that they are no longer listed or replayed.

The records expire with the topic.
"""

app = typer.Typer(help="List, show, replay or discard dead letters.", no_args_is_help=True)

FromTopic = Annotated[str | None, typer.Option(help="Only from this dead-letter topic.")]
Stage = Annotated[str | None, typer.Option(help="Only from this stage, such as segmenter or ingest.")]
Type = Annotated[str | None, typer.Option("--type", help="Only with this error type, such as schema_violation.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Stop after this many.")]
Raw = Annotated[bool, typer.Option("--raw", help="Print only the value, byte for byte.")]
DeadLetterAddress = Annotated[
    str, typer.Argument(metavar="TOPIC/PARTITION/OFFSET", help="Address, as printed by `list`.")
]


@app.command("list")
def list_dead_letters(
    topic: FromTopic = None,
    stage: Stage = None,
    error_type: Type = None,
    since: Since = None,
    conversation: Conversation = None,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Print the dead letters that were neither replayed nor discarded, as a table, or as JSON Lines with --json."""
    from afterword.operating.dlq import Filters

    filters = Filters(stage, error_type, since, conversation)

    async def each(queue: "DeadLetterQueue", topics: Sequence[str]) -> None:
        page: list[tuple[str, ...]] = []
        count = 0
        for name in topics:
            async with aclosing(queue.unresolved(name, filters)) as letters:
                async for letter in letters:
                    if count == limit:
                        break
                    count += 1
                    if as_json:
                        print_json(_row(letter))
                    else:
                        page.append(_cells(letter))
                    if len(page) == PAGE:
                        print_table(COLUMNS, page, below=1)
                        page.clear()
        if not as_json:
            print_table(COLUMNS, page, below=1, none="" if count else NONE)

    _with_queue(topic, each)


@app.command()
def show(address: DeadLetterAddress, raw: Raw = False) -> None:
    """Print one dead letter: its error, headers and value."""

    async def one(queue: "DeadLetterQueue", _: Sequence[str]) -> None:
        letter = await queue.find(address)
        if raw:
            typer.echo(letter.value or b"", nl=False)
        else:
            typer.echo(_page(letter))

    _with_queue(None, one)


@app.command("discard", help=DISCARD)
@app.command("replay", help=REPLAY)
def resolve(
    context: typer.Context,
    topic: FromTopic = None,
    stage: Stage = None,
    error_type: Type = None,
    since: Since = None,
    conversation: Conversation = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Replay or discard dead letters, depending on the name of the command."""
    from afterword.operating.dlq import Filters

    filters = Filters(stage, error_type, since, conversation)
    action: Action = "replayed" if context.info_name == "replay" else "discarded"

    async def work(queue: "DeadLetterQueue", topics: Sequence[str]) -> None:
        planned = {name: await queue.count(name, filters, action) for name in topics}
        total = sum(counts.resolved for counts in planned.values())
        if dry_run or not (yes and total):
            _report(planned, f"would be {action}")
        if dry_run or not total or not (yes or typer.confirm("Continue?", err=True)):
            return
        with counting() as show_count:

            def progress(name: str, number: int) -> None:
                show_count(name, number, planned[name].resolved)

            done = {name: await queue.resolve(name, filters, action, progress) for name in topics}
        _report(done, action)

    _with_queue(topic, work)


def _with_queue(topic: str | None, work: "Callable[[DeadLetterQueue, Sequence[str]], Awaitable[None]]") -> None:
    from afterword.operating.dlq import open_queue

    async def with_topics(queue: "DeadLetterQueue") -> None:
        topics = await queue.topics()
        if topic is not None and topic not in topics:
            raise typer.BadParameter(f"{topic!r} is not one of {', '.join(topics)}", param_hint="--topic")
        await work(queue, [topic] if topic else topics)

    use(open_queue, start_command(), with_topics)


def _report(counts_by_topic: "dict[str, DeadLetterCounts]", done: str) -> None:
    if not any(counts.by_type for counts in counts_by_topic.values()):
        typer.echo(NONE, err=True)
    for name, counts in counts_by_topic.items():
        if not counts.by_type:
            continue
        types = ", ".join(f"{shown(kind)} {number:,}" for kind, number in counts.by_type.most_common())
        skipped = "".join(f"; {number:,} {reason}, skipped" for reason, number in counts.skipped.items())
        typer.echo(f"{name}: {counts.resolved:,} {done} ({types}){skipped}")


def _cells(letter: "DeadLetter") -> tuple[str, ...]:
    failed = f"{letter.failed_at:%Y-%m-%d %H:%M:%S}"
    texts = letter.stage, letter.error_type, _text(letter.key) or "–", letter.problem
    return letter.address, failed, *map(shown, texts)


def _row(letter: "DeadLetter") -> dict[str, Any]:
    from afterword.schemas.base import rfc3339

    return {
        "address": letter.address,
        "failed_at": rfc3339(letter.failed_at),
        "stage": letter.stage,
        "type": letter.error_type,
        "problem": letter.problem,
        "key": _text(letter.key),
        "conversation_id": letter.conversation_id,
        "origin": letter.origin and letter.origin._asdict(),
        "bytes": len(letter.value or b""),
    }


def _page(letter: "DeadLetter") -> str:
    row = _row(letter) | {"origin": "/".join(map(str, letter.origin)) if letter.origin else None}
    lines = [f"{name:<16} {'–' if value is None else value}" for name, value in row.items()]
    lines += [f"{'header':<16} {name}: {_text(value)}" for name, value in letter.headers]
    # the value comes last, so it may have several lines
    return "\n".join([*map(shown, lines), "", printable(_text(letter.value) or "")])


def _text(value: bytes | None) -> str | None:
    """Decode bytes; those that are not UTF-8 are replaced. `--raw` prints them."""
    return None if value is None else value.decode(errors="replace")
