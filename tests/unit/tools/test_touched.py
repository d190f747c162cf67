"""Which nightly and deployment tests a changed file needs."""

from pathlib import Path

import pytest

from tests.rows import with_rows
from tools.touched import TESTS, covering_tests, without_nested

ROOT = Path(__file__).parents[3]


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
