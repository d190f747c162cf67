from pathlib import Path

import typer
import typer.main

from afterword.cli import app
from tools.reference.cli import reference

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"


def test_the_page_is_what_the_commands_say() -> None:
    page = reference(typer.main.get_command(app), "afterword")
    assert PAGE.read_text() == page, "docs/reference/cli.md is stale: make docs"


def test_every_argument_and_option_says_what_it_is_for() -> None:
    assert [line for line in PAGE.read_text().splitlines() if line.startswith("- `") and line.endswith("`: ")] == []
