"""Prints for people and programs: JSON, tables, progress, and the current wait."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import typer

from afterword_text.visible import INDENT, printable, shown_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from afterword.reading.context import Context

LABEL_WIDTH = 12
"""Width of the labels in front of texts, in characters."""


def print_json(value: Any) -> None:
    typer.echo(shown_json(json.dumps(value, ensure_ascii=False)))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, below: int = 0, none: str = "") -> None:
    """Print a table on a terminal, or tab-separated lines with a header elsewhere.

    `none` is printed to standard error if there are no rows. A terminal shows the last `below` columns as texts below
    the others, across its full width.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    if not cells:
        if none:
            typer.echo(none, err=True)
    elif not sys.stdout.isatty():
        for row in (columns, *cells):
            typer.echo("\t".join(_quoted(" ".join(cell.split())) for cell in row))
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


def _quoted(cell: str) -> str:
    """Keep a spreadsheet that reads the table from running a cell as a formula."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@")) else cell


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
    """Prints lines on standard output, and on a terminal a last line that describes the current wait.

    On a terminal, lines are wrapped at words and colored. Elsewhere they are printed unchanged, and the wait is
    announced on a separate line, unless it is `live`.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))

    @cached_property
    def _console(self) -> "Console":
        from rich.console import Console

        return Console(highlight=False)

    @cached_property
    def _waiting(self) -> "Status":
        return self._console.status("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.doing("")

    def doing(self, text: str, live: bool = False) -> None:
        """Describe the current wait. An empty text hides the line."""
        if not self._is_terminal:
            if text and not live:
                self.line(f"… {text}")
        elif text:
            from rich.markup import escape

            self._waiting.update(escape(text))
            self._waiting.start()
        else:
            self._waiting.stop()

    def line(self, text: str = "", style: str = "") -> None:
        """Print one line as plain text, never as markup."""
        if self._is_terminal:
            print_wrapped(self._console, printable(text), style)
        else:
            typer.echo(printable(text))

    def row(self, label: str, text: str, style: str = "", label_width: int = LABEL_WIDTH) -> None:
        """Print a text beside its label, wrapped within its own column."""
        if not self._is_terminal:
            typer.echo(printable(f"  {label:<{label_width}}{text}").rstrip())
            return
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(min_width=label_width, no_wrap=True, style="dim" if label != "user" else "green")
        grid.add_column(overflow="fold")
        grid.add_row(Text(f"  {printable(label)}"), Text(printable(text), style))
        self._console.print(grid)


def context_lines(context: "Context") -> Iterator[str]:
    """Format a context for people. Only our own text starts a line, so no summary or content can pass for a turn."""
    yield from context.as_text(printable).splitlines()
    yield ""
    saved = f", {context.compression:.1%} less" if context.compression > 0 else ""
    events = f"{context.events} of {context.events_full} events"
    whole = "; messages in full, because they fit" if context.verbatim else ""
    yield f"{context.tokens:,} of {context.tokens_full:,} tokens{saved}; {events}{whole}"
