"""Slopes over a long run, their table, and the picture of the curves."""

import xml.etree.ElementTree as ElementTree
from math import isclose

from tests.e2e.faults.curves import Bound, Curves, Panel, ceiling, rows, slope, stretches, svg, table, verdict_of

MEMORY = Panel("memory", "MB", Bound(share=0.1, least=20), frozenset({"steady"}))
DISK = Panel("disk", "MB", None)
MINUTES = [60.0 * minute for minute in range(61)]


def curves(**named: list[float]) -> Curves:
    found = Curves()
    for at, seconds in enumerate(MINUTES):
        found.add(seconds, {"memory": {name: values[at] for name, values in named.items()}})
    return found


def test_a_straight_line_has_its_slope() -> None:
    found = slope(MINUTES, [100 + 30 * at / 3600 for at in MINUTES])
    assert found
    assert isclose(found.an_hour, 30, rel_tol=1e-9)


def test_warming_up_and_single_peaks_are_no_slope() -> None:
    values = [min(200.0, 20.0 * minute) for minute in range(61)]
    values[20] = values[50] = 9000.0
    assert slope(MINUTES, values) == (200.0, 0.0)


def test_a_short_run_or_half_a_curve_has_no_slope() -> None:
    assert slope([], []) is None
    assert slope([0, 200, 400, 599], [1, 2, 3, 4]) is None
    assert slope(MINUTES, [1.0] * 30 + [None] * 31) is None


def test_a_slope_beyond_share_and_least_is_a_leak() -> None:
    leaking, growing = ([level + an_hour * at / 3600 for at in MINUTES] for level, an_hour in ((100, 30), (500, 30)))
    [leak] = rows(curves(steady=leaking), [MEMORY])
    [flat] = rows(curves(steady=growing), [MEMORY])
    assert leak.leaks
    assert not flat.leaks
    assert table([leak])[-1].endswith("| 20.0 MB | LEAK |")
    assert table([flat])[-1].endswith("| flat |")


def test_a_lag_that_rises_says_that_the_load_is_too_much() -> None:
    leaking = rows(curves(steady=[float(at) for at in MINUTES]), [MEMORY])
    assert verdict_of(leaking, "lag") == "LEAKS: memory of steady"
    assert verdict_of(leaking, "memory").startswith("SATURATED")
    assert verdict_of([], "lag") == "no leak"


def test_those_that_come_and_go_are_drawn_but_not_judged() -> None:
    found = curves(steady=[1.0] * 61, guest=[float(at) for at in range(61)])
    assert [row.name for row in rows(found, [MEMORY])] == ["steady"]
    assert "guest" in svg(found, [MEMORY], "run")


def test_what_is_stored_rises_and_is_no_leak() -> None:
    found = Curves(MINUTES, {"disk": {"mongo": list(MINUTES)}})
    [row] = rows(found, [DISK])
    assert not row.leaks
    assert "rises with the messages" in table([row])[-1]


def test_a_curve_that_begins_late_or_pauses_has_gaps() -> None:
    found = Curves()
    found.add(0, {"memory": {"a": 1}})
    found.add(1, {"memory": {"b": 2}})
    found.add(2, {"memory": {"a": 3, "b": 4}})
    assert found.values == {"memory": {"a": [1, None, 3], "b": [None, 2, 4]}}
    assert stretches(found.seconds, found.values["memory"]["a"]) == [[(0, 1)], [(2, 3)]]


def test_the_picture_is_xml_with_a_line_for_every_stretch() -> None:
    found = curves(steady=[float(at) for at in range(61)])
    root = ElementTree.fromstring(svg(found, [MEMORY, DISK], "a < b & c"))
    space = "{http://www.w3.org/2000/svg}"
    [line] = root.iter(f"{space}polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert len(points) == len(MINUTES)
    assert points[0][0] < points[-1][0]
    assert points[0][1] > points[-1][1], "up is less in SVG"
    assert root.findtext(f"{space}title") == "a < b & c"


def test_the_picture_bears_a_run_of_one_sample() -> None:
    found = Curves()
    found.add(0.0, {"memory": {"steady": 0.0}})
    ElementTree.fromstring(svg(found, [MEMORY], "run"))


def test_scales_end_at_round_numbers() -> None:
    assert [ceiling(value) for value in (0, 0.3, 1.5, 10, 51, 200, 900)] == [1, 1, 2, 10, 100, 200, 1000]
