"""Helpers shared by the commands: settings, JSON, tables and progress."""

import json
import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import typer

from afterword.streams.errors import AfterwordError, BrokerUnavailable, ConfigurationError, StoreUnavailable
from afterword.streams.private import make_files_private
from afterword.streams.text.visible import INDENT, printable, shown, shown_json

if TYPE_CHECKING:
    from rich.console import Console

    from afterword.reading.memory import Memory
    from afterword.streams.settings import Settings

Result = TypeVar("Result")

FAILED = 1
MISCONFIGURED = 2

ANSWER_SECONDS = 1.5
"""Servers must give a command their first answer within this time, so that it reports a dead one within 3 seconds."""

LABEL_WIDTH = 12
"""Width of the labels in front of texts, in characters."""

AGO = re.compile(r"(\d+)([smhd])")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment(text: str) -> datetime:
    """Parse an RFC 3339 time, or a duration such as `90s`, `15m`, `2h` or `3d` ago, as UTC. Raises: BadParameter."""
    try:
        if found := AGO.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{UNITS[found[2]]: int(found[1])})
        parsed = datetime.fromisoformat(text)
        return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is not within the years 1 to 9999") from None
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither an RFC 3339 time nor a duration such as 15m, 2h or 3d") from None


def not_empty(user: str | None) -> str | None:
    """Reject an empty user, as an unset variable in a script would give. Raises: typer.BadParameter."""
    if user == "":
        raise typer.BadParameter("it is empty; name a user")
    return user


Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
USER = typer.Option("--user", callback=not_empty, help="Only data of this user, matched exactly.")
User = Annotated[str | None, USER]
RequiredUser = Annotated[str, USER]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only data of this tenant.")]
NoTenant = Annotated[bool, typer.Option("--no-tenant", help="Only data without a tenant.")]
Conversation = Annotated[str | None, typer.Option("--conversation", help="Only in this conversation.")]
Since = Annotated[
    datetime | None,
    typer.Option(parser=moment, help="Only those since this time, or in the last 15m, 2h, 3d."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done without changing anything.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def start() -> "Settings":
    """Load the settings and send logs to standard error, because standard output is for results.

    Files created from now on are private to the user. API keys that are sent unencrypted are logged as warnings.
    Raises: ConfigurationError.
    """
    from afterword.streams.logs import configure, log
    from afterword.streams.settings import keys_in_clear, load_settings

    make_files_private()
    settings = load_settings()
    configure(settings.logs)
    for setting, address in keys_in_clear(settings):
        log.warning("api_key_sent_in_clear", setting=setting, address=address, remedy="use an https address")
    return settings


def start_quietly() -> "Settings":
    """Load the settings as `start` does, but silence aiokafka's logs: the command reports errors itself."""
    settings = start()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    return settings


def start_command() -> "Settings":
    """Load the settings of a short-lived command. By default they are those of `afterword dev` in this directory.

    aiokafka's logs are silenced, and servers that do not answer are given up early, because somebody is waiting.
    """
    find_config()
    settings = start_quietly()
    servers = {name: getattr(settings, name).answering_within(ANSWER_SECONDS) for name in ("kafka", "mongo", "qdrant")}
    return settings.model_copy(update=servers)


def find_config() -> None:
    """If the settings come from an `afterword dev` file, say so, and name the file to child processes."""
    from afterword.streams.settings import CONFIG_FILE_VARIABLE, config_file, dev_config

    if CONFIG_FILE_VARIABLE in os.environ:
        return
    if file := config_file():
        os.environ[CONFIG_FILE_VARIABLE] = file
        typer.echo(f"afterword: using the settings in {file}", err=True)
    elif (other := dev_config()) and other.stat().st_uid != os.getuid():
        typer.echo(f"afterword: ignoring {other}, which belongs to another user", err=True)


def next_step(error: AfterwordError) -> str:
    """If a server cannot be reached, say where its address comes from and what to do; return "" for other errors."""
    from afterword.streams.settings import ADDRESSES, address_source, load_settings, without_credentials

    kafka, mongodb, qdrant, _ = ADDRESSES
    variable = kafka if type(error) is BrokerUnavailable else None
    if type(error) is StoreUnavailable:
        store = str(vars(error).get("store", "")).partition(" ")[0].lower()
        variable = {"kafka": kafka, "mongodb": mongodb, "qdrant": qdrant}.get(store)
    if variable is None:
        return ""
    address = f" {without_credentials(load_settings().mongo.uri.get_secret_value())}" if variable == mongodb else ""
    return f"; its address{address} {address_source(variable)}"


def tenant_of(tenant: str | None, no_tenant: bool) -> str | None:
    """Return the named tenant, or None for data without one. Raises: BadParameter unless one of both is given."""
    if (tenant is None) != no_tenant:
        raise typer.BadParameter("give either --tenant or --no-tenant")
    return tenant


def report(error: AfterwordError) -> int:
    """Print the error on one line, without a traceback. Returns the exit code."""
    sys.stderr.write(f"afterword: {shown(str(error) + next_step(error))}\n")
    return MISCONFIGURED if isinstance(error, ConfigurationError) else FAILED


async def from_memory(read: "Callable[[Memory], Awaitable[Result]]") -> Result:
    """Open the memory, read from it, and close it."""
    from afterword.reading.memory import Memory

    async with Memory.from_settings(start_command()) as memory:
        return await read(memory)


def print_json(value: Any) -> None:
    typer.echo(shown_json(json.dumps(value, ensure_ascii=False)))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, below: int = 0, none: str = "") -> None:
    """Print a table on a terminal, or tab-separated lines with a header elsewhere.

    `none` is printed to standard error if there are no rows. `below` is the number of last columns that a terminal
    shows as texts below the others, across its full width.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    if not cells:
        if none:
            typer.echo(none, err=True)
    elif not sys.stdout.isatty():
        for row in (columns, *cells):
            typer.echo("\t".join(" ".join(cell.split()) for cell in row))
    elif below:
        _print_listing(columns, cells, below)
    else:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), header_style="bold", show_edge=False)
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))  # as Text, so that user content is not read as markup
        Console(highlight=False).print(table)


def _print_listing(columns: Sequence[str], rows: Sequence[Sequence[str]], below: int) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    widths = [
        max(map(len, (cell.replace("\n", " ") for cell in column))) for column in zip(columns, *rows, strict=True)
    ]
    for number, row in enumerate([columns, *rows]):
        bold, own = "bold" if number == 0 else "", "bold" if number == 0 else "cyan"
        cells = zip(row[:-below], widths, strict=False)
        line = "  ".join(" ".join(cell.split()).ljust(width) for cell, width in cells)
        print_wrapped(console, line.rstrip(), own)
        for text in filter(None, row[-below:]):
            console.print(Padding(Text(text, bold), (0, 0, 0, len(INDENT))))


def print_wrapped(console: "Console", text: str, style: str = "") -> None:
    """Print the text, wrapped at words.

    Continuation lines are indented, so that they cannot pass for new lines.
    """
    from rich.text import Text

    for line in text.split("\n"):
        indent = max(INDENT, line[: len(line) - len(line.lstrip(" "))], key=len)
        first, *rest = [Text(line, style)]
        if len(first.wrap(console, console.width)) > 1:
            first, *rest = first.wrap(console, max(console.width - len(indent), 1))
        for piece in (first, *(Text(indent).append_text(piece) for piece in rest)):
            console.print(piece)


Counting = Callable[[str, int, int | None], None]
"""Called with what is being done, how much of it is done, and the total, if known."""


@contextmanager
def counting(wanted: bool = True) -> Iterator[Counting]:
    """Show progress on a terminal's standard error, with the rate and the time left; other output appears above it."""
    if not (wanted and sys.stderr.isatty()):
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rate]}")
    times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    with Progress(*columns, *times, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, rate="")
        current = ""

        def show(what: str, done: int, total: int | None) -> None:
            nonlocal current
            if what != current:
                current = what
                bar.reset(task, description=what, total=total)
            speed = bar.tasks[0].speed
            bar.update(task, completed=done, total=total, rate=f"{done:,}" + (f", {speed:,.0f}/s" if speed else ""))

        yield show


class Screen:
    """Prints lines on standard output, and on a terminal a last line that says what is being waited for.

    On a terminal, lines are wrapped at words and colored. Elsewhere they are printed unchanged, and the wait is
    announced on a separate line, unless it is `live`.
    """

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False)
        self._waiting = self._console.status("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.stop()

    def doing(self, text: str, live: bool = False) -> None:
        """Say what is being waited for. An empty text hides the line."""
        from rich.markup import escape

        if not text:
            self._waiting.stop()
        elif self._console.is_terminal:
            self._waiting.update(escape(text))
            self._waiting.start()
        elif not live:
            self.line(f"… {text}")

    def line(self, text: str = "", style: str = "") -> None:
        """Print one line as plain text, never as markup."""
        if self._console.is_terminal:
            print_wrapped(self._console, printable(text), style)
        else:
            typer.echo(printable(text))

    def row(self, label: str, text: str, style: str = "", label_width: int = LABEL_WIDTH) -> None:
        """Print a text beside its label, wrapped within its own column."""
        if not self._console.is_terminal:
            typer.echo(printable(f"  {label:<{label_width}}{text}").rstrip())
            return
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(min_width=label_width, no_wrap=True, style="dim" if label != "user" else "green")
        grid.add_column(overflow="fold")
        grid.add_row(Text(f"  {printable(label)}"), Text(printable(text), style))
        self._console.print(grid)
