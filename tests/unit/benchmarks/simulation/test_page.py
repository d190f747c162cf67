"""The tables of docs/scaling.md are those that the command prints."""

from pathlib import Path

import pytest

from benchmarks.simulation import report
from benchmarks.simulation.bottlenecks import decade
from benchmarks.simulation.capacity import need
from benchmarks.simulation.parameters import Parameters
from benchmarks.suite import Finding, as_markdown

PAGE = Path(__file__).parents[4] / "docs" / "scaling.md"
LOADS = tuple(10.0**exponent for exponent in range(4, 10))
P = Parameters()
NEEDS = [need(load, P) for load in LOADS]


@pytest.mark.parametrize(
    "found",
    [
        report.workers(NEEDS),
        report.stores(NEEDS),
        report.calls(NEEDS),
        report.ends([decade(load, P) for load in LOADS]),
    ],
    ids=lambda found: found.title,
)
def test_the_page_has_what_the_formulas_give(found: Finding) -> None:
    rows = as_markdown(found).splitlines()[2:]
    assert [row for row in rows if row and row not in PAGE.read_text()] == []


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.23, "0.2"), (8, "8"), (9960, "10 k"), (1234, "1.2 k"), (46e12, "46 T")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert report.short(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.013, "13 ms"), (5.24, "5.2 s"), (80, "80 s"), (300, "5 min"), (7300, "2 h"), (200_000, "2 d")],
)
def test_times_have_the_unit_that_fits(value: float, text: str) -> None:
    assert report.seconds(value) == text
