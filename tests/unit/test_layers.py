"""Import-linter is told where every module of Afterword belongs, and the page on the architecture shows it."""

import re
import tomllib
from pathlib import Path

import afterword

ROOT = Path(__file__).parents[2]


def contract(name: str) -> dict[str, list[str]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [found] = [contract for contract in contracts if contract["name"] == name]
    return found


def layers() -> list[list[str]]:
    return [layer.split(" | ") for layer in contract("Dependencies point one way")["layers"]]


def modules(folder: Path) -> set[str]:
    """Names of the modules and packages in a folder."""
    files = {file.stem for file in folder.glob("*.py")} - {"__init__"}
    return files | {inner.parent.name for inner in folder.glob("*/__init__.py")}


def product() -> set[str]:
    """Modules and packages directly below `afterword` and `afterword.streams`."""
    own = Path(afterword.__path__[0])
    of_streams = {f"afterword.streams.{name}" for name in modules(own / "streams")}
    return of_streams | {f"afterword.{name}" for name in modules(own) - {"streams"}}


def test_every_module_is_in_a_layer() -> None:
    assert {module for layer in layers() for module in layer} == product()


def test_all_of_afterword_but_the_engine_is_forbidden_to_it() -> None:
    assert set(contract("The engine stands alone")["forbidden_modules"]) == product() - {"afterword.streams.runtime"}


def test_the_page_on_the_architecture_shows_these_layers() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    shown = page.split("## Which way dependencies point\n")[1].split("```")[1]
    names = [re.findall(r"[\w.]+", line) for line in shown.replace("↓", "").splitlines() if line.strip()]
    assert names == [[module.removeprefix("afterword.") for module in layer] for layer in layers()]
