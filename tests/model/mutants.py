"""Breaks the engine and the agents on purpose, to measure the model check by how many of the breaks it finds.

Each is applied to a copy of the source tree, where the model check then runs, or the unit tests of the mechanism where
a history would need too many coincidences.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
MOST_HISTORIES = 1_200
"""Histories to try before a mutant counts as not found."""
COPIED = ("afterword", "consumers", "distributions", "schemas", "streams", "tests", "pyproject.toml")


class Mutant(NamedTuple):
    sentence: str
    machine: str
    """A machine of the model check, or a file of tests."""
    file: str
    old: str
    new: str


MUTANTS = [Mutant(**mutant) for mutant in tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["mutants"]]


def all_found(only: str = "") -> bool:
    """Try the mutants whose sentence contains `only`, and write a line for each."""
    verdicts = [found(mutant) for mutant in MUTANTS if only in mutant.sentence]
    return all(verdicts)


def found(mutant: Mutant) -> bool:
    began = time.perf_counter()
    with mutated(mutant) as tree:
        if mutant.machine.endswith(".py"):
            options = ["pytest", "-x", "-q", "--tb=no", mutant.machine]
        else:
            options = ["tests.model", mutant.machine, "--raw", "--histories", str(MOST_HISTORIES)]
        command = [sys.executable, "-m", *options]
        environment = os.environ | {"PYTHONPATH": str(tree / "distributions/engine")}
        ended = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    why = reason(ended.stderr) or failed_test(ended.stdout)
    verdict = f"found in {seconds:.0f} s ({why})" if why else f"NOT FOUND in {seconds:.0f} s"
    if ended.returncode and not why:
        raise RuntimeError(ended.stderr)
    sys.stdout.write(f"{mutant.sentence}: {verdict}\n")
    sys.stdout.flush()
    return bool(why)


@contextmanager
def mutated(mutant: Mutant) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        for name in COPIED:
            copy(ROOT / name, tree / name)
        file = tree / mutant.file
        text = file.read_text()
        if text.count(mutant.old) != 1:
            raise ValueError(f"{mutant.sentence}: {mutant.file} has changed, so must the mutant")
        file.write_text(text.replace(mutant.old, mutant.new))
        yield tree


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def reason(errors: str) -> str:
    """Return the error that ended the failed history; empty if none failed."""
    if "Failing test case" not in errors:
        return ""
    return re.findall(r"^[\w.]*Error.*$", errors, re.MULTILINE)[-1].removeprefix("AssertionError: ")[:100]


def failed_test(output: str) -> str:
    """Return the name of the unit test that failed; empty if none did."""
    return next(iter(re.findall(r"^FAILED \S+::(\w+)", output, re.MULTILINE)), "")
