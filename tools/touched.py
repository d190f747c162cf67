"""Print the tests whose nightly and deployment forms cover what changed: python -m tools.touched [COMMIT]

A change is whatever differs from where this branch left COMMIT (`main` by default), committed or not.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
EVERY_PROCESS = "integration e2e deploy/test_image.py deploy/test_wiring.py"
HOW_TO = "e2e/test_how_to.py e2e/test_examples.py deploy/test_producers.py deploy/test_webhooks.py"
TESTS = {
    ".": "",
    "pyproject.toml": f"unit/test_extras.py unit/test_distributions.py {EVERY_PROCESS}",
    "requirements-image.lock": EVERY_PROCESS,
    "wheels.txt": "unit/test_tools.py",
    "Dockerfile": "deploy",
    "compose": "deploy/test_compose.py",
    "docker-compose.yml": "deploy/test_compose.py",
    "helm": "deploy",
    "docs": HOW_TO,
    "examples": HOW_TO,
    "distributions/engine": "integration/engine e2e",
    "distributions/text": "integration/summarizer e2e",
    "afterword": "integration/afterword e2e unit/test_extras.py deploy/test_wiring.py",
    "distributions/embedded": "integration/embedded e2e/test_demo.py e2e/test_dev.py",
    "consumers": "integration/consumers e2e deploy/test_wiring.py",
    "schemas": f"integration/consumers e2e {HOW_TO}",
    "streams": EVERY_PROCESS,
    "streams/ingest": "integration/ingest e2e/test_ingest.py e2e/test_dev.py deploy/test_producers.py",
    "streams/settings.py": f"{EVERY_PROCESS} deploy",
    "streams/webhooks": "integration/webhooks deploy/test_webhooks.py",
}
"""What to test, below tests/. The longest path that a changed file equals or is below counts."""


def covering_tests(changed: str) -> list[str]:
    """Return the paths of the tests that cover a changed file. A test covers itself."""
    if changed.startswith("tests/"):
        return [changed] if Path(changed).name.startswith("test_") else []
    nearest = next(path for path in (changed, *map(str, Path(changed).parents)) if path in TESTS)
    return [f"tests/{name}" for name in TESTS[nearest].split()]


def without_nested(paths: Iterable[str]) -> list[str]:
    """Drop paths that are below other paths."""
    unique = set(paths)
    return sorted(path for path in unique if unique.isdisjoint(map(str, Path(path).parents)))


def changed_files(commit: str) -> list[str]:
    commands = (["diff", "--name-only", "--merge-base", commit], ["ls-files", "--others", "--exclude-standard"])
    return [name for command in commands for name in _git(*command).splitlines()]


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    needed = without_nested(test for name in changed_files(*sys.argv[1:] or ["main"]) for test in covering_tests(name))
    sys.stdout.write("".join(f"{test}\n" for test in needed if (ROOT / test).exists()))
