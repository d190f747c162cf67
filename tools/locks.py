"""Compare the locks with pyproject.toml and wheels.txt, without a network: python -m tools.locks"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import wheels

ROOT = Path(__file__).parents[1]
OURS = "distributions/text", "distributions/engine"
"""Our distributions that are installed from their folders, so the locks have only their requirements."""
EXTRA_LOCKS = {
    "requirements.lock": "test",
    "requirements-image.lock": "serve",
    "requirements-bench.lock": "bench",
}
"""The extra of each lock, beside the base install. `make lock` uses the same."""
GROUP_LOCKS = {
    "requirements-build.lock": "build",
    "requirements-demo.lock": "demo",
    "requirements-litellm.lock": "litellm",
    "requirements-llm.lock": "llm",
    "requirements-tools.lock": "tools",
    "requirements-uv.lock": "uv",
}
"""The dependency group of each other lock."""
ENTRY = re.compile(r"^([\w.-]+)(?:\[[\w,-]*\])?==([^ ;\\]+)", re.M)


def problems(required: Iterable[Requirement], lock: str) -> Iterator[str]:
    """Yield each requirement that a lock's text does not meet."""
    locked: dict[str, set[str]] = {}
    for name, version in ENTRY.findall(lock):
        locked.setdefault(canonicalize_name(name), set()).add(version)
    for wanted in required:
        versions = locked.get(canonicalize_name(wanted.name), set())
        if not any(wanted.specifier.contains(version, prereleases=True) for version in versions):
            yield f"{wanted}: the lock has {', '.join(sorted(versions)) or 'no version'}"


def requirements(project: dict[str, Any], extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield the project's requirements with these extras, with our own distributions replaced by theirs."""
    ours = [tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in OURS]
    projects = {own["name"]: own for own in (project, *ours)}
    named = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    for wanted in map(Requirement, named):
        if wanted.name in projects:
            yield from requirements(projects[wanted.name], wanted.extras)
        else:
            yield wanted


def required_of_locks() -> dict[str, list[Requirement]]:
    """Return the requirements of each lock, by its file's name."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = declared["project"]
    groups = {name: [Requirement(one) for one in named] for name, named in declared["dependency-groups"].items()}
    with_extras = {name: [*requirements(project, [extra])] for name, extra in EXTRA_LOCKS.items()}
    return with_extras | {name: groups[group] for name, group in GROUP_LOCKS.items()}


def main() -> None:
    found = [
        f"{name}: {problem}"
        for name, required in required_of_locks().items()
        for problem in problems(required, (ROOT / name).read_text())
    ]
    pins = [f"{name}=={version}" for lock in wheels.LOCKS for name, version in ENTRY.findall((ROOT / lock).read_text())]
    found += wheels.problems(wheels.TABLE.read_text(), pins)
    if found:
        sys.exit("\n".join([*dict.fromkeys(found), "run: make lock"]))


if __name__ == "__main__":
    main()
