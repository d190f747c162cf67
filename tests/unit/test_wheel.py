"""What users install: everything that the packages need at run time, and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "afterword": "afterword",
    "consumers": "afterword/consumers",
    "schemas": "afterword/schemas",
    "streams": "afterword/streams",
}
"""Folders of the repository, and where they are in the wheel."""
BUILD = "import setuptools.build_meta as backend; backend.build_wheel('.')"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files in a wheel built from a copy of the sources, so that nothing is left among them."""
    copy = tmp_path_factory.mktemp("wheel")
    for name in (*PACKAGES, "tests", "benchmarks", "tools"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    (copy / "README.md").touch()
    subprocess.run([sys.executable, "-c", BUILD], cwd=copy, check=True, capture_output=True)
    [built] = copy.glob("*.whl")
    return set(zipfile.ZipFile(built).namelist())


def test_every_file_of_the_packages_is_in_it(wheel: set[str]) -> None:
    files = {
        f"{inside}/{path.relative_to(ROOT / folder)}"
        for folder, inside in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files <= wheel


@pytest.mark.parametrize(
    "name",
    [
        "afterword/embedded/jars.lock",
        "afterword/embedded/EmbeddedMongo.java",
        "afterword/samples/conversations.jsonl",
        "afterword/samples/LICENSE",
        "afterword/samples/README.md",
        "afterword/py.typed",
    ],
)
def test_what_is_no_code_is_in_it_too(wheel: set[str], name: str) -> None:
    assert name in wheel


def test_it_has_one_top_level_package(wheel: set[str]) -> None:
    assert {name.split("/")[0] for name in wheel if ".dist-info/" not in name} == {"afterword"}
