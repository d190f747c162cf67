"""Guard against regressions: compares the ratios of a short run with those that are kept.

python -m benchmarks.guard build/check.json [--baseline benchmarks/baseline.json] [--renew]

Ratios only: they compare programs of one run, so the machine and what else it does is nearly out of them. How far they
scatter all the same is kept with them, as the lowest of several runs, and the limit is below that.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson
from rich.console import Console

from benchmarks.suite import Finding, Line, show

BASELINE = Path("benchmarks/baseline.json")
MARGIN = 0.6
"""Share of the kept ratio. Less than that is a regression, not a busy machine."""
SPREAD_MARGIN = 0.85
"""Share of the lowest ratio that the kept runs had: the limit, where they scatter so far that it is the lower one."""

Verdict = Literal["fine", "slower", "gone", "new"]
Ratios = Mapping[str, float]


@dataclass(frozen=True)
class Kept:
    """The median and the lowest of the runs that the baseline was made of."""

    ratio: float
    lowest: float

    @property
    def limit(self) -> float:
        return min(MARGIN * self.ratio, SPREAD_MARGIN * self.lowest)


@dataclass(frozen=True)
class Judged:
    name: str
    verdict: Verdict
    kept: Kept | None
    found: float | None

    @property
    def failed(self) -> bool:
        """`gone` fails as well: a comparison that is left out guards nothing."""
        return self.verdict in ("slower", "gone")


def judge(kept: Mapping[str, Kept], found: Ratios) -> list[Judged]:
    """Every ratio of either side, by name."""
    return [_judged(name, kept.get(name), found.get(name)) for name in sorted({*kept, *found})]


def _judged(name: str, kept: Kept | None, found: float | None) -> Judged:
    if found is None:
        return Judged(name, "gone", kept, found)
    if kept is None:
        return Judged(name, "new", kept, found)
    return Judged(name, "slower" if found < kept.limit else "fine", kept, found)


def baseline_of(runs: Sequence[Ratios]) -> dict[str, Kept]:
    """Baseline of the ratios that every run has."""
    names = set.intersection(*(set(run) for run in runs)) if runs else set()
    return {
        name: Kept(statistics.median(run[name] for run in runs), min(run[name] for run in runs))
        for name in sorted(names)
    }


def ratios_in(path: Path) -> dict[str, float]:
    """Read the ratios in a file that `python -m benchmarks --json` wrote."""
    found: dict[str, float] = orjson.loads(path.read_bytes())["ratios"]
    return found


def read(path: Path) -> dict[str, Kept]:
    return {name: Kept(**one) for name, one in orjson.loads(path.read_bytes())["ratios"].items()}


def encoded(kept: Mapping[str, Kept], runs: int, machine: Mapping[str, str]) -> bytes:
    """The baseline's file; the machine is kept for whoever wonders."""
    text = {"runs": runs, "machine": dict(machine), "ratios": {name: vars(one) for name, one in kept.items()}}
    return orjson.dumps(text, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def table(judged: Sequence[Judged]) -> Finding:
    notes = (
        f"The limit: {MARGIN} of the kept ratio, or {SPREAD_MARGIN} of the lowest kept run where that is less.",
        "Fails below it, and where a kept ratio is not measured any more. `--renew` keeps what was found.",
    )
    return Finding("ratios beside those that are kept", [_line(one) for one in judged], notes)


def _line(one: Judged) -> Line:
    figures = {}
    if one.kept is not None:
        numbers = {"kept": one.kept.ratio, "lowest": one.kept.lowest, "limit": one.kept.limit}
        figures = {heading: f"{number:.2f}" for heading, number in numbers.items()}
    if one.found is not None:
        figures["found"] = f"{one.found:.2f}"
    return Line(one.name, {**figures, "verdict": one.verdict})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description="Has it become slower?")
    parser.add_argument("runs", type=Path, nargs="+", help="files of `python -m benchmarks --short --json`")
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    parser.add_argument(
        "--renew", action="store_true", help="keep these runs as the baseline: several, on a quiet machine"
    )
    given = parser.parse_args(arguments)
    found = [ratios_in(path) for path in given.runs]
    kept = baseline_of(found)
    if given.renew:
        machine = orjson.loads(given.runs[0].read_bytes())["machine"]
        given.baseline.write_bytes(encoded(kept, len(found), machine))
    judged = judge(read(given.baseline), {name: one.ratio for name, one in kept.items()})
    show(table(judged), Console(width=140))
    return int(any(one.failed for one in judged))


if __name__ == "__main__":
    sys.exit(main())
