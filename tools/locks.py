"""Compare the locks with pyproject.toml, without a network: python -m tools.locks"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = {
    "requirements.lock": ("test",),
    "requirements-image.lock": ("serve", "build"),
    "requirements-bench.lock": ("bench",),
    "requirements-release.lock": ("release",),
    "requirements-site.lock": ("site",),
}
"""The extras that each lock is made for; `make lock` says the same."""
ENTRY = re.compile(r"^([\w.-]+)(?:\[[\w,-]*\])?==([^ ;\\]+)", re.M)


def problems(project: dict[str, Any], lock: str, extras: Iterable[str]) -> Iterator[str]:
    """Yield each requirement of the project, with these extras, that the text of a lock does not meet."""
    locked: dict[str, set[str]] = {}
    for name, version in ENTRY.findall(lock):
        locked.setdefault(canonicalize_name(name), set()).add(version)
    for wanted in _requirements(project, extras):
        versions = locked.get(canonicalize_name(wanted.name), set())
        if not any(wanted.specifier.contains(version, prereleases=True) for version in versions):
            yield f"{wanted}: the lock has {', '.join(sorted(versions)) or 'no version'}"


def _requirements(project: dict[str, Any], extras: Iterable[str]) -> Iterator[Requirement]:
    named = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    for wanted in map(Requirement, named):
        if wanted.name == project["name"]:
            yield from _requirements(project, wanted.extras)
        else:
            yield wanted


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [
        f"{name}: {problem}"
        for name, extras in LOCKS.items()
        for problem in problems(project, (ROOT / name).read_text(), extras)
    ]
    if found:
        sys.exit("\n".join([*dict.fromkeys(found), "run: make lock"]))


if __name__ == "__main__":
    main()
