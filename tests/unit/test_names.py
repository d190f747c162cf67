"""One name, one thing: no two modules of the product define the same public class, function or alias."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.unit.test_wording import ROOT, sources

COMMANDS = "a command, and the function that it runs"
ENGINE = "the engine imports nothing of ours"
ACCEPTED = {
    "demo": COMMANDS,
    "dev": COMMANDS,
    "export": COMMANDS,
    "import_history": COMMANDS,
    "produce": COMMANDS,
    "rebuild_index": COMMANDS,
    "redo": COMMANDS,
    "reset": COMMANDS,
    "smoke": COMMANDS,
    "verify": COMMANDS,
    "watch": COMMANDS,
    "check": "a command, and the check of each store's backend, named with its module",
    "run": "runs a worker, an audit, Java: named with its module",
    "main": "the entry point, and what it runs once the extras are there",
    "read": "reads one format of `afterword.importing.formats`: each module has one",
    "Headers": ENGINE,
    "private_directory": ENGINE,
}
ALIAS = re.compile(r"[A-Z]\w*[a-z]\w*")


def is_option(node: ast.stmt, file: Path) -> bool:
    """Tell whether it is an option or argument of commands: each file has its own, with its own help."""
    made = node.value if isinstance(node, ast.Assign) else None
    is_annotated = isinstance(made, ast.Subscript) and isinstance(made.value, ast.Name) and made.value.id == "Annotated"
    return is_annotated and file.parent.name == "commands"


def defined(file: Path) -> Iterator[str]:
    """Public classes, functions and aliases at the top of a module; an alias is written like a class."""
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names = [name]
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names = [name] if ALIAS.fullmatch(name) and not is_option(node, file) else []
            case _:
                names = []
        yield from (name for name in names if not name.startswith("_"))


def test_no_two_modules_define_the_same_public_name() -> None:
    places = defaultdict(set)
    for file in sources():
        for name in defined(file):
            places[name].add(str(file.relative_to(ROOT)))
    twice = {name: sorted(files) for name, files in places.items() if len(files) > 1}
    assert {name: files for name, files in twice.items() if name not in ACCEPTED} == {}
    assert ACCEPTED.keys() - twice.keys() == set(), "no longer defined twice"


def test_classes_functions_and_aliases_are_read_and_options_of_commands_are_not(tmp_path: Path) -> None:
    (tmp_path / "commands").mkdir()
    file = tmp_path / "commands" / "some.py"
    file.write_text(
        "class A: ...\ndef b(): ...\nasync def c(): ...\nPair = tuple[int, int]\nLater: TypeAlias = Any\n"
        "LIMIT = 1\nlog = get()\n_Own = int\nOption = Annotated[int, 1]\n"
    )
    assert list(defined(file)) == ["A", "b", "c", "Pair", "Later"]
