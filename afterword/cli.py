"""The command line. Each group of commands is a module of `afterword.commands`; what is heavy they import when run."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from afterword.commands import (
    audit,
    check,
    config,
    context,
    dev,
    dlq,
    episodes,
    index,
    produce,
    recall,
    schema,
    smoke,
    topics,
    watch,
    worker,
)
from afterword.streams.errors import AfterwordError, ConfigurationError
from afterword.version import revision, running_version

FAILED = 1
MISCONFIGURED = 2

app = typer.Typer(
    name="afterword",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"afterword {running_version()} (revision {revision()})")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print version and revision.")
    ] = False,
) -> None:
    """Long-term memory for chat assistants, from the Kafka topic their messages are on already."""


app.add_typer(topics.app, name="topics")
app.add_typer(worker.app, name="worker")
app.add_typer(config.app, name="config")
app.add_typer(schema.app, name="schema")
app.add_typer(dlq.app, name="dlq")
app.add_typer(index.app, name="index")
for command in (
    dev.dev,
    dev.demo,
    check.check,
    smoke.smoke,
    produce.produce,
    watch.watch,
    context.context,
    episodes.episodes,
    recall.recall,
    audit.audit,
):
    app.command()(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends the process: 0, 1 when something failed or is not as it should be, 2 when a setting or argument is wrong."""
    try:
        app(args=arguments)
    except ConfigurationError as error:
        end(error, MISCONFIGURED)
    except AfterwordError as error:
        end(error, FAILED)


def end(error: AfterwordError, code: int) -> None:
    """One line that says what is wrong, and no traceback."""
    sys.stderr.write(f"afterword: {error}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
