"""Names in the pages exist: tests, files, settings, commands, options. Programs compile."""

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from afterword.cli import app
from afterword.schemas.messages import EDITABLE
from afterword.streams.ingest.sources import Fields
from afterword.streams.settings import FILE_SUFFIX, READ_ELSEWHERE, Settings, is_secret, locations, variable
from tests.blocks import COMMANDS, blocks
from tools.diagrams import PICTURES, diagrams, picture_of, title_of

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "examples", "distributions", "streams")
TESTS = ("tests", "distributions/engine/tests", "distributions/text/tests")
FOUND = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
PAGES = sorted(page for page in FOUND if "node_modules" not in page.parts)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
TEST = re.compile(r"`(test_\w+)`")
VARIABLE = re.compile(r"\bAFTERWORD_[A-Z_]*[A-Z]\b")
COMMAND = re.compile(r"\bafterword ((?:worker |topics )?[a-z]+)")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def existing_tests() -> set[str]:
    files = [file for folder in TESTS for file in (ROOT / folder).rglob("*.py")]
    found = re.findall(r"def (test_\w+)|class (test_\w+)", "\n".join(file.read_text() for file in files))
    return {name for names in found for name in names if name} | {file.stem for file in files}


@cache
def commands() -> set[str]:
    command = typer.main.get_command(app)
    groups = getattr(command, "commands", {})
    return {
        name if inner is None else f"{name} {inner}"
        for name, group in groups.items()
        for inner in [None, *getattr(group, "commands", {})]
    }


def test_first_screen_of_readme_has_commands() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:20])
    assert {"make demo", "make test"} <= set(re.findall(r"^make \w+", first_screen, re.M))
    ci = (ROOT / ".ci" / "run").read_text()
    assert 'make "${1:-test}"' in ci


@pages
def test_links_in_docs_lead_to_files(page: Path) -> None:
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


@pages
def test_programs_in_docs_compile(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            compile(block.code, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pages
def test_command_options_shown_in_docs_exist(page: Path) -> None:
    lines = [line for block in blocks(page) if block.language in COMMANDS for line in block.code.splitlines()]
    assert [line for line in lines if unknown_options(line)] == []


@pages
def test_tests_named_in_docs_exist(page: Path) -> None:
    assert set(TEST.findall(page.read_text())) - existing_tests() == set()


@pytest.mark.parametrize(
    ("page", "row", "fields"),
    [
        ("docs/how-to/connect-a-topic.md", "| `map` |", Fields.model_fields),
        ("docs/how-to/correct-and-delete.md", "| [`message.edited`]", EDITABLE),
    ],
)
def test_row_names_every_field_of_a_message(page: str, row: str, fields: Iterable[str]) -> None:
    (line,) = [line for line in (ROOT / page).read_text().splitlines() if line.startswith(row)]
    assert set(re.findall(r"`(\w+)", line.removeprefix(row))) == set(fields)


@pages
def test_settings_named_in_docs_exist(page: Path) -> None:
    fields = list(locations(Settings))
    known = {variable(location) for location, _ in fields}
    known |= {variable(location) + FILE_SUFFIX for location, field in fields if is_secret(field)}
    known |= set(VARIABLE.findall((ROOT / "setup.py").read_text()))
    named = {name for name in VARIABLE.findall(page.read_text()) if not READ_ELSEWHERE.fullmatch(name)}
    assert {name for name in named - known if not any(other.startswith(f"{name}__") for other in known)} == set()


@pages
def test_commands_shown_in_docs_exist(page: Path) -> None:
    assert set(COMMAND.findall("\n".join(code(page.read_text())))) - commands() == set()


def unknown_options(line: str) -> set[str]:
    """Options that the command of a line does not have: of its first word `afterword` to a pipe or its end."""
    words = line.partition("#")[0].split()
    if "afterword" not in words:
        return set()
    command: Any = typer.main.get_command(app)
    given = []
    for word in words[words.index("afterword") + 1 :]:
        if word in ("|", "<", ">", "&&"):
            break
        if word in getattr(command, "commands", {}):
            command = command.commands[word]
        elif word.startswith("-") and word != "-":
            given.append(word.partition("=")[0])
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return set(given) - known - {"--help", "--version"}


def code(text: str) -> list[str]:
    """Blocks and spans: in prose the name may stand before any word."""
    blocks = re.findall(r"```\n(.*?)```", text, re.S)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))
    return [*blocks, *spans]


def test_every_diagram_has_picture_and_title() -> None:
    sources = list(diagrams())
    kept = {str(path.relative_to(ROOT)) for path in (ROOT / PICTURES).glob("diagram-*.svg")}
    assert {picture_of(source) for source in sources} == kept, "make diagrams"
    assert all(map(title_of, sources))


def test_pictures_load_nothing() -> None:
    for source in diagrams():
        picture = (ROOT / picture_of(source)).read_text()
        assert not re.search(r"<script|<image|<foreignObject|@import|url\((?!#)|href=.https?:", picture)
