"""The engine imports nothing else of Afterword, and import-linter is told to look for all of it."""

import tomllib
from pathlib import Path

import afterword

ROOT = Path(__file__).parents[3]


def modules(folder: Path) -> set[str]:
    """Names of the modules and packages in a folder."""
    files = {file.stem for file in folder.glob("*.py")} - {"__init__"}
    return files | {inner.parent.name for inner in folder.glob("*/__init__.py")}


def test_all_of_afterword_but_the_engine_is_forbidden_to_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [engine] = [contract for contract in contracts if contract["name"] == "The engine stands alone"]
    own = Path(afterword.__path__[0])
    of_streams = {f"afterword.streams.{name}" for name in modules(own / "streams") - {"runtime"}}
    others = {f"afterword.{name}" for name in modules(own) - {"streams"}}
    assert set(engine["forbidden_modules"]) == of_streams | others
