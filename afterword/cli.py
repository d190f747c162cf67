"""The command line. Commands live in `afterword.commands` and import heavy modules only when they run."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperOption

from afterword.commands import dlq, operating, person, processes, reading, writing
from afterword.commands.common import report
from afterword.streams.errors import AfterwordError
from afterword.streams.installed import version_line


def _type_shown(option: TyperOption, ctx: Any) -> str | None:
    return None if option.is_flag else option.display_type(ctx)


TyperOption.display_type_rich = _type_shown  # type: ignore[assignment]  # it shows <bool> for flags, and has no setting


class SystemRefuses(AfterwordError):
    """{problem}"""


app = typer.Typer(
    name="afterword",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_line())
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print version and revision.")
    ] = False,
) -> None:
    """Long-term memory for chat assistants, built from the Kafka topic that already carries their messages."""


Commands = Mapping[str, Callable[..., None]]


def _group(help_: str, commands: Commands) -> typer.Typer:
    made = typer.Typer(help=help_, no_args_is_help=True)
    for name, command in commands.items():
        made.command(name)(command)
    return made


KEYS: Commands = {"create": processes.create, "list": processes.list_keys, "revoke": processes.revoke}
SCHEMAS: Commands = {"export": operating.export_schemas, "register": operating.register_schemas}
TOPICS: Commands = {"create": operating.create_topics, "wait": operating.wait_for_topics}
GROUPS = {
    "topics": _group("Create or verify topics.", TOPICS),
    "worker": processes.worker_app,
    "config": _group("Show the configuration.", {"show": operating.show_config}),
    "schema": _group("Export or register the events' schemas.", SCHEMAS),
    "source": _group("Try the sources of `afterword worker ingest`.", {"try": writing.try_source}),
    "dlq": dlq.app,
    "state": _group("Rebuild the segmenter's state.", {"rebuild": operating.rebuild}),
    "summaries": _group("Redo stored summaries.", {"redo": operating.redo}),
    "erase": person.app,
    "keys": _group("Manage keys for `afterword serve`.", KEYS),
    "prompt": _group("Try prompts before they are used.", {"try": operating.try_prompt}),
    "index": _group("Maintain the search index.", {"rebuild": operating.rebuild_index}),
    "embedder": _group("Fetch a model for the search index's vectors.", {"get": operating.get_model}),
    "stores": _group("Copy stored data.", {"copy": operating.copy_stores}),
}
for name, group in GROUPS.items():
    app.add_typer(group, name=name)
for command in (
    writing.init,
    processes.dev,
    processes.demo,
    operating.check,
    operating.smoke,
    writing.produce,
    writing.say,
    processes.serve,
    processes.mcp,
    reading.watch,
    reading.users,
    reading.conversations,
    reading.context,
    reading.episodes,
    reading.recall,
    reading.profile,
    person.assign,
    person.export,
    operating.usage,
    operating.audit,
):
    app.command()(command)
app.command("import")(writing.import_history)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with 0 for success, 1 for a failure or a finding, or 2 for an invalid setting or argument.

    `audit` also exits with 2 if its wait timed out before it could tell.
    """
    try:
        app(args=arguments, prog_name="afterword")  # so that `python -m afterword` shows the same name
    except SystemExit as ended:
        # whatever reads the output, such as head, has closed the pipe
        if isinstance(ended.__context__, BrokenPipeError):
            sys.exit(0)
        raise
    except AfterwordError as error:
        sys.exit(report(error))
    except OSError as error:
        if error.errno is None:  # raised by a library; without its traceback it means nothing
            raise
        where = f"{error.filename}: " if error.filename is not None else ""
        sys.exit(report(SystemRefuses(problem=f"{where}{error.strerror}")))


if __name__ == "__main__":
    main()
