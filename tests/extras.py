"""Finds the packages that an extra installs, and runs processes that can import only those."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
EMBEDDED = ("afterword-embedded", "afterword.embedded")
"""The distribution that is part of the checkout, and its package."""
FOLDERS = {"faust-eos": "engine", "afterword-text": "text"}
"""Our other distributions, and their folders."""
BASE = ""
FORBIDDING = """
import sys, json
class Forbidding:
    forbidden = set(json.loads(sys.argv.pop(1)))
    def find_spec(self, name, path=None, target=None):
        if {name, name.partition(".")[0]} & self.forbidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Forbidding())
"""


def project_of(folder: Path) -> dict[str, Any]:
    """Read the table `project` of a folder's `pyproject.toml`."""
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found


@cache
def requirements(extra: str) -> tuple[Requirement, ...]:
    """Return the requirements of the base install, or of an extra, from `pyproject.toml`."""
    project = project_of(ROOT)
    named = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return tuple(map(Requirement, named))


def embedded_project() -> dict[str, Any]:
    return project_of(ROOT / "distributions" / "embedded")


@cache
def installed_by(extra: str) -> frozenset[str]:
    """Return the canonical names of the distributions that `pip install afterword[extra]` installs, except our own."""
    found: set[tuple[str, str]] = set()
    waiting = [*requirements(BASE), *requirements(extra)]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        for chosen in (*wanted.extras, ""):
            if (name, chosen) not in found:
                found.add((name, chosen))
                waiting += _required_by(name, chosen)
    return frozenset(name for name, _ in found) - {"afterword"}


def _required_by(name: str, extra: str) -> Iterable[Requirement]:
    if name == "afterword":
        return requirements(extra)
    if name == EMBEDDED[0]:
        return map(Requirement, embedded_project()["dependencies"])
    if name in FOLDERS:
        project = project_of(ROOT / "distributions" / FOLDERS[name])
        return map(Requirement, project["optional-dependencies"][extra] if extra else project["dependencies"])
    wanted = map(Requirement, distribution(name).requires or ())
    return [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": extra})]


def forbidden_without(extra: str) -> list[str]:
    """Return the modules that are installed here and would not be installed by this extra alone."""
    allowed = installed_by(extra)
    of_module: Mapping[str, list[str]] = packages_distributions()
    foreign = {
        module
        for module, names in of_module.items()
        if module != "afterword" and not allowed & set(map(canonicalize_name, names))
    }
    return sorted(foreign | ({EMBEDDED[1]} if EMBEDDED[0] not in allowed else set()))


def run_with(extra: str, code: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run Python in a process where nothing can be imported that this extra does not install."""
    command = [sys.executable, "-c", FORBIDDING + code, json.dumps(forbidden_without(extra)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]  # passed on
