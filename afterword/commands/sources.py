"""`afterword init` and `afterword source`: read topics of other applications."""

import asyncio
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afterword.commands.common import Json, print_json, print_table, start_command
from afterword.streams.text.visible import many, printable, shown

if TYPE_CHECKING:
    from afterword.streams.settings import Settings
    from afterword.writing.sources import Start, Tried

SHOWN_CHARACTERS = 600
"""How much of a record is printed."""
SHOWN_CONVERSATIONS = 10
SHOWN_TEXT = 70
FAILS_SHOWN = 3

app = typer.Typer(help="Try the sources of `afterword worker ingest`.", no_args_is_help=True)


class Format(StrEnum):
    """Names of the formats in `streams.ingest.sources`, which is only imported when a command runs."""

    json = "json"
    avro = "avro"
    json_schema = "json-schema"


Number = Annotated[int, typer.Option("--source", min=1, help="Number of the source in its file.")]
Last = Annotated[int, typer.Option("--last", min=1, max=10_000, help="How many of the topics' last records to read.")]
Brokers = Annotated[str | None, typer.Option(help="Brokers as host:port; default: the settings', or ask.")]
Topic = Annotated[str | None, typer.Option(help="Topic with chat messages; default: ask.")]
HowWritten = Annotated[Format | None, typer.Option("--format", help="Encoding of the values; default: guess.")]
Out = Annotated[Path | None, typer.Option(help="File to write; default: AFTERWORD_INGEST__FILE.")]


@app.callback()
def source() -> None:
    """Try the sources of `afterword worker ingest`."""


@app.command("try")
def try_source(number: Number = 1, last: Last = 20, as_json: Json = False) -> None:
    """Show what the last records of a source would become, without writing. Exit 1 if any would be a dead letter."""
    from afterword.writing.sources import try_source as run

    found = asyncio.run(run(start_command(), number, last))
    if as_json:
        for one in found:
            print_json(_document(one))
    else:
        print_table(("record", "value", "becomes"), [_row(one) for one in found])
    if any(one.problem for one in found):
        raise typer.Exit(1)


def init(
    brokers: Brokers = None,
    topic: Topic = None,
    form: HowWritten = None,
    last: Last = 200,
    out: Out = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Read a topic, guess how its records become messages, and write the mapping to afterword.toml.

    It prints what it found, with conversations cut into episodes. Exit 1 if records do not fit the mapping.
    """
    from afterword.writing.sources import start_with

    settings = _with_brokers(start_command(), brokers)
    file = out or settings.ingest.file
    if file.exists() and not force:
        raise typer.BadParameter(f"{file} exists; give another --out, or --force to replace it", param_hint="--out")
    topic = topic or _asked("Topic with chat messages", "--topic")
    found = asyncio.run(start_with(settings, topic, form.value if form else None, last))
    file.write_text(found.toml, encoding="utf-8")
    _print_start(found, file, settings)
    if found.guess.missing or any(one.problem for one in found.tried):
        raise typer.Exit(1)


def _with_brokers(settings: "Settings", brokers: str | None) -> "Settings":
    default = settings.kafka.bootstrap_servers
    if brokers is None and sys.stdin.isatty():
        brokers = str(typer.prompt("Brokers", default=default))
    kafka = settings.kafka.model_copy(update={"bootstrap_servers": brokers or default})
    return settings.model_copy(update={"kafka": kafka})


def _asked(what: str, option: str) -> str:
    if not sys.stdin.isatty():
        raise typer.BadParameter("is required without a terminal", param_hint=option)
    return str(typer.prompt(what))


def _print_start(found: "Start", file: Path, settings: "Settings") -> None:
    typer.echo(printable(found.toml))
    fails = [one for one in found.tried if one.problem]
    mapped = sum(bool(one.becomes) for one in found.tried)
    skipped = len(found.tried) - mapped - len(fails)
    typer.echo(f"{many(len(found.tried), 'record', 'records')}: {mapped} mapped, {skipped} skipped, {len(fails)} fail")
    for one in fails[:FAILS_SHOWN]:
        typer.echo(shown(f"  {_address(one)}: {one.problem}"))
    for name, episodes in list(found.conversations.items())[:SHOWN_CONVERSATIONS]:
        typer.echo(shown(f"conversation {name}:"))
        for event in episodes:
            text = " ".join(event.messages[0].content.split())[:SHOWN_TEXT]
            count = many(event.message_count, "message", "messages")
            typer.echo(shown(f"  episode {event.ordinal}: {count}, “{text}…”"))
    typer.echo(f"\nwritten to {file}; now:")
    typer.echo(f"  export AFTERWORD_KAFKA__BOOTSTRAP_SERVERS={settings.kafka.bootstrap_servers}")
    typer.echo("  afterword source try       what each record becomes; change the file until it is right")
    typer.echo("  afterword topics create    with the dead-letter queue of the topic")
    typer.echo("  afterword worker ingest    beside segmenter, summarizer and archiver")


def _address(tried: "Tried") -> str:
    return f"{tried.record.topic}/{tried.record.partition}/{tried.record.offset}"


def _row(tried: "Tried") -> tuple[str, str, str]:
    value = json.dumps(tried.value, ensure_ascii=False, indent=1, default=repr)[:SHOWN_CHARACTERS]
    fields = [line for one in _fields(tried.becomes) for line in (f"{name}: {said}" for name, said in one.items())]
    becomes = "\n".join(fields)
    return _address(tried), value, becomes[:SHOWN_CHARACTERS] or tried.problem or "skipped"


def _fields(records: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"type": dict(one.headers)["ce_type"].decode(), **json.loads(one.value)} for one in records]


def _document(tried: "Tried") -> dict[str, Any]:
    problem = {"problem": tried.problem} if tried.problem else {}
    value = json.loads(json.dumps(tried.value, default=repr))
    return {"record": _address(tried), "value": value, "becomes": _fields(tried.becomes), **problem}
