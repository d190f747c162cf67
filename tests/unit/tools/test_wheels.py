"""Which pins of the locks install without a compiler."""

import pytest

from tests.rows import with_rows
from tools.wheels import BUILT, NONE, TABLE, has_wheel, problems, rows

ROW = "numpy==2.5.0  x86-64: 3.11 3.14  arm64: 3.11 3.14\n"


@with_rows
def test_wheel_fits_platforms_of_its_tags(wheel: str, python: str, machine: str, fits: bool) -> None:
    assert has_wheel({"wheels": [{"url": f"files/{wheel}"}]}, python, machine) is fits


@pytest.mark.parametrize(("package", "fits"), [({"marker": "sys_platform == 'win32'"}, True), ({"sdist": {}}, False)])
def test_package_without_wheels_fits_other_systems_only(package: dict[str, object], fits: bool) -> None:
    assert has_wheel(package, "3.14", "x86_64") is fits


def test_missing_row_or_gap_is_a_problem() -> None:
    assert list(problems(ROW, ["numpy==2.5.0"])) == []
    assert list(problems(ROW, ["numpy==2.5.1"])) == ["numpy==2.5.1: wheels.txt does not have it"]
    [problem] = problems(ROW.replace("3.14", NONE), ["numpy==2.5.0"])
    assert problem.startswith("no wheel: numpy==2.5.0")


def test_every_package_built_from_source_lacks_wheels() -> None:
    lacking = {row.partition("==")[0] for row in TABLE.read_text().splitlines() if NONE in row}
    assert set(BUILT) <= lacking


@pytest.mark.nightly
def test_table_is_what_the_index_has() -> None:
    assert list(rows()) == TABLE.read_text().splitlines()
