"""Programs of ours that are run by `python -m`: each explains itself."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r'ArgumentParser\(\s*prog="python -m ([\w.]+)"')


def programs() -> Iterator[str]:
    for folder in ("benchmarks", "tests", "tools"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield from NAMED.findall(file.read_text())


def test_programs_are_found() -> None:
    assert {"benchmarks", "tests.e2e.faults.soak"} <= set(programs())


@pytest.mark.parametrize("program", sorted(programs()))
def test_a_program_explains_itself(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", program, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith(f"usage: python -m {program}"), done.stderr
