"""Test with the newest versions of packages that change without us, for `make newest`: python -m tools.newest [TEST…]

It runs in a virtual environment that has what requirements.lock pins. It installs the newest versions and runs the
tests, by default those of `tests/unit` and `tests/contract`, and the examples. If some fail, it goes back to the locked
version of one group after the other, and runs only those that failed twice. Prints a table, and exits with 1 if tests
fail.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
GROUPS = (
    "langgraph langgraph-checkpoint",
    "langchain langchain-core",
    "openai-agents openai",
    "mcp mcp-types",
    "pydantic pydantic-settings",
    "qdrant-client",
    "fastapi starlette",
    "motor pymongo",
    "httpx",
    "aiokafka",
)
"""Packages that are released together."""
TESTS = ("tests/unit", "tests/contract", "tests/e2e/test_examples.py", "-m", "not deploy")

PYTEST = ("pytest", "-q", "-o", "cache_dir=build/newest-cache")
"""With its own memory of failed tests, because those of the locked versions may run meanwhile."""


def run(*arguments: str) -> bool:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, check=False).returncode == 0


def installed() -> dict[str, str]:
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--format=json"], capture_output=True, check=True, text=True
    )
    return {one["name"].lower(): one["version"] for one in json.loads(listed.stdout)}


def install(packages: Iterable[str], *options: str) -> None:
    """Install packages; those that they do not get along with are changed as well."""
    if not run("pip", "install", "--quiet", "--disable-pip-version-check", *options, *packages):
        sys.exit(f"{' '.join(packages)} cannot be installed")


def main() -> None:
    tests = sys.argv[1:] or TESTS
    locked = installed()
    # one at a time, because two may be at odds in their newest versions; the last one wins
    for group in GROUPS:
        install([name for name in group.split() if name in locked], "--upgrade")
    newest = installed()
    changed = [group for group in GROUPS if any(newest.get(name) != locked.get(name) for name in group.split())]
    # twice, because a busy machine is no vendor's change
    passes = run(*PYTEST, *tests) or run(*PYTEST, "--last-failed", *tests)
    results = dict.fromkeys(changed, "passes")
    for group in () if passes else changed:
        install([f"{name}=={locked[name]}" for name in group.split() if name in locked])
        results[group] = "BREAKS TESTS" if run(*PYTEST, "--last-failed", *tests) else "not to blame alone"
        install([f"{name}=={newest[name]}" for name in group.split() if name in locked])
    rows = [("package", "locked", "newest", "result")]
    for group in GROUPS:
        names = (name for name in group.split() if name in locked)
        rows += [(name, locked[name], newest[name], results.get(group, "the same")) for name in names]
    sys.stdout.writelines(f"{name:<20} {before:<12} {now:<12} {result}\n" for name, before, now, result in rows)
    sys.exit(not passes)


if __name__ == "__main__":
    main()
