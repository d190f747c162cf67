"""The tools of the repository."""

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rows import with_rows
from tools.commit_message import problems
from tools.statements import LEAST_OF_A_LINE, sentences
from tools.touched import TESTS, covering_tests, without_nested
from tools.wheels import BUILT, NONE, TABLE, has_wheel, rows
from tools.wheels import problems as wheel_problems


@with_rows
def test_faulty_message_is_named(message: str, problem: str) -> None:
    found = list(problems(message))
    assert len(found) == bool(problem)
    assert problem in "".join(found)


SCRIPT = Path(__file__).parents[2] / "tools" / "python.sh"
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


def test_sentence_template_yields_every_alternative() -> None:
    animals = [f"animal{n}" for n in range(2 * LEAST_OF_A_LINE)]

    made = sentences(f"I have {{a dog|{'|'.join(animals)}}} {{now|}}", random.Random(57))

    assert {one.removesuffix(" now") for one in made} == {"I have a dog", *(f"I have {one}" for one in animals)}


ROOT = Path(__file__).parents[2]


def test_every_path_of_the_table_exists() -> None:
    named = {Path("tests", name) for names in TESTS.values() for name in names.split()} | {*map(Path, TESTS)}
    assert {path for path in named if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize(
    "folder", ["afterword", "consumers", "schemas", "streams", "distributions/engine", "distributions/text", "helm"]
)
def test_every_product_file_selects_tests(folder: str) -> None:
    files = [path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py")]
    assert [path for path in files if not covering_tests(str(path))] == []


@with_rows
def test_changed_file_selects_tests(changed: str, selected: str) -> None:
    assert selected in covering_tests(changed)
    assert covering_tests("CHANGELOG.md") == []


def test_nested_paths_are_dropped() -> None:
    assert without_nested(["tests/e2e/test_page.py", "tests/e2e", "tests/deploy"]) == ["tests/deploy", "tests/e2e"]


ROW = "numpy==2.5.0  x86-64: 3.11 3.14  arm64: 3.11 3.14\n"


@with_rows
def test_wheel_fits_platforms_of_its_tags(wheel: str, python: str, machine: str, fits: bool) -> None:
    assert has_wheel({"wheels": [{"url": f"files/{wheel}"}]}, python, machine) is fits


@pytest.mark.parametrize(("package", "fits"), [({"marker": "sys_platform == 'win32'"}, True), ({"sdist": {}}, False)])
def test_package_without_wheels_fits_other_systems_only(package: dict[str, object], fits: bool) -> None:
    assert has_wheel(package, "3.14", "x86_64") is fits


def test_missing_row_or_gap_is_a_problem() -> None:
    assert list(wheel_problems(ROW, ["numpy==2.5.0"])) == []
    assert list(wheel_problems(ROW, ["numpy==2.5.1"])) == ["numpy==2.5.1: wheels.txt does not have it"]
    [problem] = wheel_problems(ROW.replace("3.14", NONE), ["numpy==2.5.0"])
    assert problem.startswith("no wheel: numpy==2.5.0")


def test_every_package_built_from_source_lacks_wheels() -> None:
    lacking = {row.partition("==")[0] for row in TABLE.read_text().splitlines() if NONE in row}
    assert set(BUILT) <= lacking


@pytest.mark.nightly
def test_table_is_what_the_index_has() -> None:
    assert list(rows()) == TABLE.read_text().splitlines()
