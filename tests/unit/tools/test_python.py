"""Which interpreter `make` takes."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rows import with_rows

SCRIPT = Path(__file__).parents[3] / "tools" / "python.sh"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the script with only these programs on PATH, each with what it prints."""

    def run(environment: dict[str, str] | None = None, **programs: str) -> subprocess.CompletedProcess[str]:
        for name in ("sed", "dirname"):
            (tmp_path / name).symlink_to(str(shutil.which(name)))
        for name, output in programs.items():
            program = tmp_path / name.replace("_", ".")
            program.write_text(f"#!/bin/sh\necho {output}\n")
            program.chmod(0o755)
        env = {"PATH": str(tmp_path), **(environment or {})}
        return subprocess.run(["/bin/sh", SCRIPT], capture_output=True, text=True, check=False, env=env)

    return run


@with_rows
def test_given_then_default_then_newest_python_is_taken(
    run: Run, environment: dict[str, str], programs: dict[str, str], taken: str
) -> None:
    assert run(environment, **programs).stdout == f"{taken}\n"


@pytest.mark.parametrize("environment", [{}, {"PYTHON": "python3"}])
@pytest.mark.parametrize("version", ["3.9", "3.15"])
def test_unsupported_python_is_refused_in_one_sentence(run: Run, environment: dict[str, str], version: str) -> None:
    done = run(environment, python3=version)
    assert (done.returncode, done.stdout) == (1, "")
    [sentence] = done.stderr.splitlines()
    assert f"python3 is Python {version}, but" in sentence
    assert "install Python 3.14" in sentence


def test_missing_python_is_said(run: Run) -> None:
    assert "(not found)" in run().stderr
