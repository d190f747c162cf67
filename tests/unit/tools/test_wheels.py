"""Which pins of the locks install without a compiler."""

import pytest

from tools.wheels import BUILT, NONE, TABLE, has_wheel, problems, rows

ROW = "numpy==2.5.0  x86-64: 3.11 3.14  arm64: 3.11 3.14\n"


@pytest.mark.parametrize(
    ("wheel", "python", "machine", "fits"),
    [
        ("numpy-2.5.0-cp314-cp314-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", "3.14", "x86_64", True),
        ("numpy-2.5.0-cp314-cp314-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", "3.14", "aarch64", False),
        ("numpy-2.5.0-cp314-cp314t-manylinux_2_27_x86_64.whl", "3.14", "x86_64", False),
        ("numpy-2.5.0-cp314-cp314-musllinux_1_2_x86_64.whl", "3.14", "x86_64", False),
        ("numpy-2.5.0-cp314-cp314-manylinux_2_39_x86_64.whl", "3.14", "x86_64", False),
        ("nh3-0.3.1-cp38-abi3-manylinux_2_17_aarch64.manylinux2014_aarch64.whl", "3.14", "aarch64", True),
        ("regex-2026.1-cp313-cp313-manylinux2014_x86_64.whl", "3.13", "x86_64", True),
        ("httpx-0.28.1-py3-none-any.whl", "3.12", "aarch64", True),
    ],
)
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
