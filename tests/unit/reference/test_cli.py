from pathlib import Path
from typing import Annotated

import typer
import typer.main

from afterword.cli import app
from tools.reference.cli import reference

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"

example = typer.Typer()
inner = typer.Typer(help="Things.")
example.add_typer(inner, name="things")


@inner.callback()
def things() -> None: ...


@inner.command()
def send(
    file: Annotated[str, typer.Argument(help="What.")],
    count: Annotated[int, typer.Option(min=1, help="How often: a | b.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="At once.")] = False,
) -> None:
    """Send it."""


def example_page() -> str:
    return reference(typer.main.get_command(example), "tool")


def test_the_page_is_what_the_commands_say() -> None:
    page = reference(typer.main.get_command(app), "afterword")
    assert PAGE.read_text() == page, "docs/reference/cli.md is stale: make docs"


def test_every_argument_and_option_says_what_it_is_for() -> None:
    assert [line for line in PAGE.read_text().splitlines() if line.startswith("| `") and line.endswith("|  |")] == []


def test_a_command_is_shown_with_its_group_its_arguments_and_its_options() -> None:
    section = example_page().rpartition("## ")[2].splitlines()
    assert section[:2] == ["tool things send", "Send it."]
    assert "| `FILE` | required | What. |" in section
    assert "| `--quick` | – | At once. |" in section


def test_bounds_stand_beside_the_default_and_a_bar_does_not_break_the_table() -> None:
    [row] = [line for line in example_page().splitlines() if "`--count" in line]
    assert row.endswith(r"| 2; x>=1 | How often: a \| b. |")
