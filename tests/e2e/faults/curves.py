"""Curves over a long run: which rise, a table of their slopes, and one picture of them all. No I/O.

A slope is the median of the last quarter of a run against the median of its second quarter, per hour: the first quarter
is warming up, and a median does not see the moments after a kill.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

SECONDS_AN_HOUR = 3600
LEAST_SECONDS = 600
"""Length of a run below which a slope an hour says nothing."""
COLUMNS, WIDTH, HEIGHT = 2, 460, 220
LEFT, RIGHT, TOP, BOTTOM = 62, 30, 58, 22
LETTER, LINE = 6, 14
"""Width of a letter and height of a line in the legend."""
"""Margins of a panel: scales are left and below, its title and legend above."""
COLORS = ("#1f6fb2", "#d1601f", "#2e8b57", "#8e44ad", "#b03a48", "#5f6a72", "#b8860b", "#1ba3a3", "#c2569b")


class Bound(NamedTuple):
    """The slope that is no leak: at most `share` of the level an hour, or at most `least` an hour."""

    share: float
    least: float

    def allows(self, slope: float, level: float) -> bool:
        return slope <= max(self.share * level, self.least)


@dataclass(frozen=True)
class Panel:
    """One small plot."""

    title: str
    unit: str
    bound: Bound | None
    """Bound of its slopes; None where the curves rise with the number of messages, as stored data does."""
    judged: frozenset[str] | None = None
    """Curves that are in the table; None for all. The others belong to processes that come and go."""


@dataclass
class Curves:
    """Samples by panel and name."""

    seconds: list[float] = field(default_factory=list)
    """Time of each sample."""
    values: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    """As many as there are times; None where there was nothing to measure."""

    def add(self, seconds: float, sample: Mapping[str, Mapping[str, float]]) -> None:
        """Append one sample: numbers by panel and name."""
        for title, named in sample.items():
            curves = self.values.setdefault(title, {})
            for name in named:
                curves.setdefault(name, [None] * len(self.seconds))
        self.seconds.append(seconds)
        for title, curves in self.values.items():
            for name, values in curves.items():
                values.append(sample.get(title, {}).get(name))


class Slope(NamedTuple):
    """How a curve goes on."""

    level: float
    """Median of the last quarter."""
    an_hour: float


def slope(seconds: Sequence[float], values: Sequence[float | None]) -> Slope | None:
    """Compare the last quarter of the time with the second one; None of a short run, or when one has no samples."""
    if not seconds or seconds[-1] - seconds[0] < LEAST_SECONDS:
        return None
    began, quarter = seconds[0], (seconds[-1] - seconds[0]) / 4
    found: dict[int, list[tuple[float, float]]] = {1: [], 3: []}
    for at, value in zip(seconds, values, strict=True):
        number = min(3, int((at - began) / quarter))
        if value is not None and number in found:
            found[number].append((at, value))
    if not all(found.values()):
        return None
    (earlier, before), (later, after) = (
        (statistics.median(at for at, _ in some), statistics.median(value for _, value in some))
        for some in (found[1], found[3])
    )
    return Slope(after, (after - before) / (later - earlier) * SECONDS_AN_HOUR)


class Row(NamedTuple):
    """One curve's line of the table."""

    panel: Panel
    name: str
    slope: Slope | None

    @property
    def leaks(self) -> bool:
        bound = self.panel.bound
        return bool(self.slope and bound and not bound.allows(self.slope.an_hour, self.slope.level))


def rows(curves: Curves, panels: Sequence[Panel]) -> list[Row]:
    return [
        Row(panel, name, slope(curves.seconds, values))
        for panel in panels
        for name, values in curves.values.get(panel.title, {}).items()
        if panel.judged is None or name in panel.judged
    ]


HEAD = ("", "curve", "level", "slope an hour", "no leak up to, an hour", "")


def table(found: Sequence[Row]) -> list[str]:
    """Markdown."""
    lines = [HEAD, ("---", "---", "---:", "---:", "---:", "---"), *(cells(row) for row in found)]
    return [f"| {' | '.join(line)} |" for line in lines]


def cells(row: Row) -> tuple[str, ...]:
    panel, found = row.panel, row.slope
    if found is None:
        return (panel.title, row.name, "–", "–", "", "too short")
    level, an_hour = f"{number(found.level)} {panel.unit}", f"{found.an_hour:+,.1f} {panel.unit}"
    if panel.bound is None:
        return (panel.title, row.name, level, an_hour, "", "rises with the messages")
    most = max(panel.bound.share * found.level, panel.bound.least)
    return (panel.title, row.name, level, an_hour, f"{number(most)} {panel.unit}", "LEAK" if row.leaks else "flat")


def verdict_of(found: Sequence[Row], lag: str) -> str:
    """Name the leaks. `lag`: title of the panel whose rise means that work piles up, which makes all else rise too."""
    leaks = [row for row in found if row.leaks]
    named = ", ".join(f"{row.panel.title} of {row.name}" for row in leaks)
    if any(row.panel.title == lag for row in leaks):
        return f"SATURATED, no steady load, so that nothing is said of leaks: {named}"
    return f"LEAKS: {named}" if leaks else "no leak"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"


def svg(curves: Curves, panels: Sequence[Panel], title: str) -> str:
    """One picture with a small plot for each panel that has curves."""
    drawn = [panel for panel in panels if curves.values.get(panel.title)]
    height = 30 + HEIGHT * -(-len(drawn) // COLUMNS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * WIDTH} {height}" role="img" '
        f'font-family="sans-serif" font-size="11">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="13" fill="#222">{escape(title)}</text>',
    ]
    for place, panel in enumerate(drawn):
        x, y = place % COLUMNS * WIDTH, 30 + place // COLUMNS * HEIGHT
        parts += [f'<g transform="translate({x} {y})">', *_plot(panel, curves), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _plot(panel: Panel, curves: Curves) -> list[str]:
    named = curves.values[panel.title]
    top = ceiling(max((value for values in named.values() for value in values if value is not None), default=0.0))
    end = curves.seconds[-1] or 1.0
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    parts = [
        f'<text x="{LEFT}" y="14" font-weight="bold" fill="#222">{escape(panel.title)}, {escape(panel.unit)}</text>'
    ]
    for share in (0.0, 0.5, 1.0):
        right, down = LEFT + wide * share, TOP + high * (1 - share)
        parts.append(f'<path d="M{LEFT} {down:.1f}h{wide}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{down + 4:.1f}" text-anchor="end" fill="#555">{share * top:,.9g}</text>')
        minutes = f"{end * share / 60:,.3g} min"
        parts.append(f'<text x="{right:.1f}" y="{HEIGHT - 6}" text-anchor="middle" fill="#555">{minutes}</text>')
    x, y = LEFT, 30
    for (name, values), color in zip(named.items(), (COLORS * len(named))[: len(named)], strict=True):
        if x > LEFT and x + LETTER * len(name) > WIDTH:
            x, y = LEFT, y + LINE
        parts.append(f'<text x="{x}" y="{y}" fill="{color}">{escape(name)}</text>')
        x += 2 * LETTER + LETTER * len(name)
        for points in stretches(curves.seconds, values):
            line = " ".join(f"{LEFT + wide * at / end:.1f},{TOP + high * (1 - v / top):.1f}" for at, v in points)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.3"/>')
    return parts


def stretches(seconds: Sequence[float], values: Sequence[float | None]) -> list[list[tuple[float, float]]]:
    """Points without the gaps between them."""
    found: list[list[tuple[float, float]]] = [[]]
    for at, value in zip(seconds, values, strict=True):
        if value is not None:
            found[-1].append((at, value))
        elif found[-1]:
            found.append([])
    return [points for points in found if points]


def ceiling(value: float) -> float:
    """The next number from `value` on that is 1, 2 or 5 times a power of ten; 1 at least."""
    if value <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= value)
