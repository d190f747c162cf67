"""Commands that write: `produce`, `say`, `import`, and `init` and `source` for topics of other applications."""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import UTC, datetime
from functools import partial
from io import BufferedReader
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

import typer

from afterword.commands.common import DryRun, Json, not_empty, start_command
from afterword.streams.errors import ConfigurationError
from afterword.terminal import counting, print_json, print_table
from afterword_text.visible import many, printable, shown

if TYPE_CHECKING:
    from afterword.streams.ingest.previews import Checked, Preview, Proposal
    from afterword.streams.settings import Settings
    from afterword.writing.importing.formats import Rejected
    from afterword.writing.importing.run import ImportCounts
    from afterword.writing.produce import Produced

Result = TypeVar("Result")

File = Annotated[str, typer.Argument(metavar="FILE", help="JSON Lines; - reads standard input.")]
Rate = Annotated[float | None, typer.Option(min=0.001, help="Maximum records per second.")]
FlushAtEnd = Annotated[
    bool, typer.Option("--flush", help="Close the pending messages of each conversation at the end.")
]
Said = Annotated[str, typer.Argument(metavar="TEXT", callback=not_empty, help="What was said.")]
OwnUser = Annotated[str, typer.Option("--user", metavar="ID", callback=not_empty, help="User of the conversation.")]
Continued = Annotated[
    str | None,
    typer.Option("--conversation", metavar="ID", callback=not_empty, help="Conversation to continue."),
]
SaidBy = Annotated[Literal["user", "assistant", "system", "tool"], typer.Option(help="Who said it.")]
OwnTenant = Annotated[str | None, typer.Option("--tenant", metavar="ID", help="Tenant of the user.")]
STANDARD_INPUT = "-"
INTERRUPTED = 130
"""Exit code of a program ended by SIGINT, following the shells' convention."""
SHOWN_CHARACTERS = 600
"""How much of a record is printed."""
SHOWN_EXAMPLE = 40
MOST_NAMED = 5
"""How many users, conversations or problems are printed."""


def produce(
    file: File,
    rate: Rate = None,
    flush: FlushAtEnd = False,
) -> None:
    """Send messages to the topic `messages`, one JSON object per line.

    A line is a message, an edit, a deletion or a flush. A file is checked before anything is sent. Standard input is
    sent up to the first invalid line.
    """
    from afterword.writing import produce as writing

    settings, total = start_command(), None
    with _opened(file) as lines:
        if writing.is_regular(lines):
            total = writing.check_lines(writing.bounded_lines(lines, writing.MOST_LINE_BYTES)).messages
            lines.seek(0)
        with counting(total is not None) as show:

            def progress(so_far: "Produced") -> None:
                show("messages", so_far.messages, total)

            sending = partial(writing.produce, settings, writing.read_lines(lines), progress, rate=rate, flush=flush)
            produced = asyncio.run(_traced("produce", sending))
    parts = []
    if produced.messages:
        conversations = many(len(produced.conversation_ids), "conversation", "conversations")
        parts.append(f"{many(produced.messages, 'message', 'messages')} of {conversations}")
    if produced.amendments:
        parts.append(many(produced.amendments, "edit or deletion", "edits and deletions"))
    if produced.flushes:
        parts.append(many(produced.flushes, "flush", "flushes"))
    typer.echo(f"{', '.join(parts) or 'nothing'} sent in {produced.seconds:.1f} s")


def say(
    text: Said,
    user: OwnUser,
    conversation: Continued = None,
    role: SaidBy = "user",
    tenant: OwnTenant = None,
    flush: FlushAtEnd = False,
) -> None:
    """Send one message to the topic `messages`, in a new conversation unless --conversation names one."""
    from uuid import uuid4

    from afterword.schemas import InvalidRecord
    from afterword.writing import produce as writing

    message_id, conversation = str(uuid4()), conversation or f"say-{uuid4()}"
    fields = {
        "id": message_id,
        "conversation_id": conversation,
        "user_id": user,
        "tenant_id": tenant,
        "role": role,
        "content": text,
    }
    line = json.dumps(fields).encode()
    try:
        writing.parse(line, datetime.now(UTC))
    except InvalidRecord as invalid:
        raise typer.BadParameter(str(invalid)) from None
    asyncio.run(_traced("say", partial(writing.produce, start_command(), [line], flush=flush)))
    typer.echo(shown(f"message {message_id} sent; go on with --conversation {quote(conversation)}"))


async def _traced(role: str, send: Callable[..., Awaitable[Result]]) -> Result:
    from afterword.streams.installed import running_version
    from afterword.streams.telemetry.tracing import tracer_from

    async with tracer_from(os.environ, role, running_version()) as tracer:
        return await send(tracer=tracer)


def _opened(file: str) -> AbstractContextManager[BufferedReader]:
    if file == STANDARD_INPUT:
        return nullcontext(cast("BufferedReader", sys.stdin.buffer))
    return Path(file).open("rb")


Format = Literal["chatgpt", "claude", "openwebui", "librechat", "messages", "jsonl"]
"""Names of the formats in `afterword.writing.importing.formats`, which is only imported when a command runs."""

Which = Annotated[
    Format,
    typer.Argument(
        metavar="FORMAT",
        help="chatgpt, claude, openwebui or librechat (their exports), messages (lists in the formats of OpenAI "
        "and Anthropic), or jsonl (our own).",
    ),
]
Files = Annotated[list[str], typer.Argument(metavar="FILE...", help="JSON files; - reads standard input.")]
User = Annotated[
    str | None,
    typer.Option(metavar="ID", help="User of records that do not name one; chatgpt needs it."),
]
Tenant = Annotated[str | None, typer.Option(metavar="ID", help="Tenant of all messages.")]
Prefix = Annotated[str, typer.Option(help="Prefix for the conversation ids.")]
WithExcluded = Annotated[
    bool, typer.Option("--with-excluded", help="Also import chats that their owner excluded from memory.")
]


def import_history(
    format_: Which,
    files: Files,
    user: User = None,
    tenant: Tenant = None,
    prefix: Prefix = "",
    with_excluded: WithExcluded = False,
    rate: Rate = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Send a history to the topic `messages` with its original times, and close the last episodes. Running it again
    sends only what is missing.

    Every message is sent, counted as a duplicate, or rejected with a reason on standard error and exit code 1.
    """
    from afterword.writing.importing.formats import ImportOptions, read_history
    from afterword.writing.importing.run import import_history as run

    if format_ == "chatgpt" and user is None:
        problem = "chatgpt exports name no user: give your application's id for this person"
        raise typer.BadParameter(problem, param_hint="--user")

    def report(rejected: "Rejected") -> None:
        sys.stderr.write(f"{shown(str(rejected))}\n")

    settings, started = start_command(), time.monotonic()
    try:
        with counting(not as_json) as show, ExitStack() as running:

            def progress(counts: "ImportCounts") -> None:
                show("messages", counts.read, None)

            opened = [(name, running.enter_context(_opened(name))) for name in files]
            outcomes = read_history(format_, ImportOptions(user, tenant, prefix, with_excluded), opened)
            sending = partial(run, settings, outcomes, progress, report, rate=rate, dry_run=dry_run)
            counts = asyncio.run(_traced("import", sending))
    except KeyboardInterrupt:
        typer.echo("afterword: interrupted; run the same command again to send the rest", err=True)
        raise typer.Exit(INTERRUPTED) from None
    seconds = time.monotonic() - started
    if as_json:
        print_json(
            {"read": counts.read, **vars(counts), "left_out": dict(counts.left_out), "seconds": round(seconds, 3)}
        )
    else:
        _print_counts(counts, seconds, "would be " if dry_run else "")
    if counts.is_empty or not counts.is_compared:
        nothing = "nothing to import was found; did the command before the pipe fail?"
        apart = "the archive does not answer, so what it has already was not compared"
        typer.echo(f"afterword: {nothing if counts.is_empty else apart}", err=True)
    if counts.rejected or counts.is_empty:
        raise typer.Exit(1)


def _print_counts(counts: "ImportCounts", seconds: float, would_be: str) -> None:
    for reason, number in counts.left_out.most_common():
        typer.echo(f"{number:,} left out: {reason}")
    if counts.flushes:
        typer.echo(f"{many(counts.flushes, 'conversation', 'conversations')} {would_be}flushed")
    duplicates = many(counts.duplicates, "duplicate", "duplicates")
    sums = f"{counts.sent:,} {would_be}sent, {duplicates}, {counts.rejected:,} rejected"
    typer.echo(f"{many(counts.read, 'message', 'messages')} read in {seconds:.1f} s: {sums}")


Number = Annotated[int, typer.Option("--source", min=1, help="Number of the source in its file.")]
Last = Annotated[int, typer.Option("--last", min=1, max=10_000, help="How many of the topics' last records to read.")]
Brokers = Annotated[str | None, typer.Option(help="Brokers as host:port; default: those in the settings, or ask.")]
Topic = Annotated[str | None, typer.Option(help="Topic with chat messages; default: ask.")]
Encoding = Annotated[
    Literal["json", "avro", "json-schema", "protobuf"] | None,
    typer.Option("--format", help="Encoding of the values; default: guess."),
]
"""Names of the formats in `streams.ingest.sources`, which is only imported when a command runs."""


Check = Annotated[
    int | None, typer.Option("--check", min=1, max=10_000, help="Count what this many of the last records become.")
]


def try_source(number: Number = 1, last: Last = 20, check: Check = None, as_json: Json = False) -> None:
    """Show what the last records of a source would become, without writing. Exit 1 if any would be a dead letter.

    With --check, only count them: by role, user and conversation, with repeats, edits, deletions and times.
    """
    from afterword.streams.ingest.previews import checked
    from afterword.streams.ingest.previews import try_source as run

    previews = asyncio.run(run(start_command(), number, check or last))
    if check:
        _print_checked(checked(previews), as_json)
    elif as_json:
        for preview in previews:
            value = json.loads(json.dumps(preview.value, default=repr))
            problem = {"problem": preview.problem} if preview.problem else {}
            print_json({"record": _address(preview), "value": value, "becomes": _fields(preview.becomes), **problem})
    else:
        print_table(("record", "value", "becomes"), [_row(preview) for preview in previews])
    if any(preview.problem for preview in previews):
        raise typer.Exit(1)


def _print_checked(report: "Checked", as_json: bool) -> None:
    if as_json:
        print_json(
            {name: value for name, value in vars(report).items() if name != "people"} | {"doubts": report.doubts}
        )
        return
    users = {name: f"{count}; {', '.join(sorted(report.people[name])[:MOST_NAMED])}" for name, count in _most(report)}
    rows = [
        ("records", report.records, f"{report.mapped} mapped, {report.skipped} skipped"),
        ("messages", report.roles.total(), _counted(report.roles)),
        ("repeats, edits, deletions", "", f"{report.repeats}, {report.edits}, {report.deletions}"),
        ("users", len(report.users), _counted(report.users)),
        ("conversations", len(report.conversations), ", ".join(f"{name} ({said})" for name, said in users.items())),
        ("times", "", " to ".join(report.times)),
        ("dead letters", report.problems.total(), _counted(report.problems)),
        *(("beware", "", doubt) for doubt in report.doubts),
    ]
    print_table(("what", "number", "which"), [(name, str(number), which) for name, number, which in rows])


def _most(report: "Checked") -> list[tuple[str, int]]:
    return report.conversations.most_common(MOST_NAMED)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.most_common(MOST_NAMED))


def init(
    brokers: Brokers = None,
    topic: Topic = None,
    form: Encoding = None,
    last: Last = 200,
) -> None:
    """Read a topic, guess how its records become messages, and write the mapping to afterword.toml.

    It prints each field with values of three conversations, and counts what the records become. Exit 1 if a field is
    not found or records do not fit the mapping. The file is the one that AFTERWORD_INGEST__FILE names, and must not
    exist yet.
    """
    from afterword.streams.ingest.previews import propose

    settings = start_command()
    if brokers is None and sys.stdin.isatty():
        brokers = str(typer.prompt("Brokers", default=settings.kafka.bootstrap_servers))
    if brokers is not None:
        kafka = settings.kafka.model_copy(update={"bootstrap_servers": brokers})
        settings = settings.model_copy(update={"kafka": kafka})
    file = settings.ingest.file
    if file.exists():
        raise ConfigurationError(setting="AFTERWORD_INGEST__FILE", problem=f"{file} exists; remove it or name another")
    if topic is None:
        if not sys.stdin.isatty():
            raise typer.BadParameter("is required without a terminal", param_hint="--topic")
        topic = str(typer.prompt("Topic with chat messages"))
    proposed = asyncio.run(propose(settings, topic, form, last))
    file.write_text(proposed.toml, encoding="utf-8")
    _print_proposal(proposed, file, settings)
    if proposed.guess.missing or any(preview.problem for preview in proposed.previews):
        raise typer.Exit(1)


def _print_proposal(proposed: "Proposal", file: Path, settings: "Settings") -> None:
    from afterword.streams.ingest.previews import checked

    typer.echo(printable(proposed.toml))
    rows = [
        (each.field, each.expression, *(text[:SHOWN_EXAMPLE] for text in each.examples), str(each.distinct))
        for each in proposed.fields
    ]
    examples = [f"example {number}" for number in range(1, len(proposed.fields[0].examples) + 1)]
    print_table(("field", "expression", *examples, "distinct"), rows)
    for name, note in proposed.guess.notes.items():
        typer.secho(shown(f"{name}: {note}" if name else note), fg="red")
    _print_checked(checked(proposed.previews), as_json=False)
    typer.echo(f"\nwritten to {file}; now:")
    typer.echo(f"  export AFTERWORD_KAFKA__BOOTSTRAP_SERVERS={settings.kafka.bootstrap_servers}")
    typer.echo("  afterword source try       what each record becomes; change the file until it is right")
    typer.echo("  afterword topics create    with the dead-letter queue of the topic")
    typer.echo("  afterword worker ingest    beside segmenter, summarizer and archiver")


def _address(preview: "Preview") -> str:
    return f"{preview.record.topic}/{preview.record.partition}/{preview.record.offset}"


def _row(preview: "Preview") -> tuple[str, str, str]:
    value = json.dumps(preview.value, ensure_ascii=False, indent=1, default=repr)[:SHOWN_CHARACTERS]
    fields = [
        line for field in _fields(preview.becomes) for line in (f"{name}: {said}" for name, said in field.items())
    ]
    becomes = "\n".join(fields)
    return _address(preview), value, becomes[:SHOWN_CHARACTERS] or preview.problem or "skipped"


def _fields(records: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"type": dict(record.headers)["ce_type"].decode(), **json.loads(record.value)} for record in records]
