"""Generate docs/reference/cli.md from the commands."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

Command = Any
"""Click's class, which Typer builds on and does not export."""

VALUES = {"int": "N", "float": "N", "str": "TEXT", "list[str]": "TEXT", "datetime": "TIME", "path": "PATH"}
"""Short names of option types, without `range`."""
EVERYWHERE = ("help", "as_json")
"""Options that the heading describes once for all commands."""
REQUIRED = " (required)"
HEADING = """\
# Command line

Made by `make docs` from `afterword/commands`; do not edit it by hand.

Every command has `--help`, and many have `--json`, which prints JSON for programs. `afterword --version` prints the
version and the commit it was built from. Results go to standard output, logs and errors to standard error. If standard
output is not a terminal, tables are printed as tab-separated lines.

| exit code | meaning |
| --- | --- |
| 0 | success, also when `dev`, `watch` or a worker was stopped by a signal |
| 1 | a failure, or a check that did not pass: see the report, or the last line of standard error |
| 2 | a setting, topic or argument is missing or wrong; or `audit --wait` timed out |

All commands read the [settings](../settings.md) from variables that begin with `AFTERWORD_`, and from the file that
`AFTERWORD_CONFIG` names. Without a file or the address of a server, they use the file of `afterword dev`:
`.afterword/afterword.toml` in the current directory or above it, if it belongs to this user.

## Common options
These options mean the same in every command that names them.

"""


def reference(command: Command, name: str) -> str:
    """Return the options that several commands have, and a section for each command below this one, as Markdown."""
    found = {context: _parameters(inner, context) for inner, context in _commands(command, name, None)}
    counts = Counter((option, text.removesuffix(REQUIRED)) for rows in found.values() for option, text in rows)
    common = [row for row, count in counts.items() if count > 1]
    sections = (
        f"\n## {context.command_path}\n{context.command.help}\n{_options(rows, common)}"
        for context, rows in found.items()
    )
    return HEADING + _list(common) + "".join(sections)


def _commands(command: Command, name: str, parent: Any) -> Iterator[tuple[Command, Any]]:
    context = command.context_class(command, info_name=name, parent=parent)
    commands = getattr(command, "commands", {})
    if not commands or command.invoke_without_command:
        yield command, context
    for inner, found in commands.items():
        yield from _commands(found, inner, context)


def _parameters(command: Command, context: Any) -> list[tuple[str, str]]:
    return [
        _described(parameter, *parameter.get_help_record(context))
        for parameter in command.get_params(context)
        if parameter.name not in EVERYWHERE
    ]


def _options(rows: list[tuple[str, str]], common: list[tuple[str, str]]) -> str:
    own, shared = [], []
    for option, text in rows:
        meaning = text.removesuffix(REQUIRED)
        if (option, meaning) in common:
            shared.append(f"`{option.partition(' ')[0]}`{REQUIRED if meaning != text else ''}")
        else:
            own.append((option, text))
    names = f"\n[Common](#common-options): {', '.join(shared)}.\n" if shared else ""
    return ("\n" + _list(own) if own else "") + names


def _list(rows: list[tuple[str, str]]) -> str:
    return "".join(f"- `{option}`: {text}\n" for option, text in rows)


def _described(parameter: Any, name: str, text: str) -> tuple[str, str]:
    """Return how a parameter is written, and what it means.

    Brackets at the end of its help `text` hold the default, the bounds, or `required`.
    """
    meaning, _, extra = text.partition("  [")
    option, _, kind = name.partition(" <")
    value = VALUES.get(kind.removesuffix(">").removesuffix(" range"), kind.removesuffix(">"))
    shown = name.upper().partition(" ")[0] if parameter.param_type_name == "argument" else f"{option} {value}".strip()
    detail = extra.removesuffix("]").replace("<=x<=", " to ").replace("x>=", "≥ ")
    return shown, f"{meaning} ({detail})" if detail else meaning
