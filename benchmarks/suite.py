"""Benchmarks and their findings; how findings are shown and kept."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, Protocol

from rich.console import Console
from rich.table import Table

LIBRARIES = ("faust-streaming", "aiokafka", "rocksdict", "motor", "qdrant-client", "orjson", "pydantic")


class Form(NamedTuple):
    """Thoroughness of a run."""

    rounds: int = 5
    short: bool = False
    """The guard's: seconds instead of minutes, only what its ratios need."""
    loads: tuple[float, ...] = ()
    """Messages a second of the benchmark `latency`, to compare versions at equal loads; otherwise shares of the
    capacity that it finds."""
    messages: tuple[int, ...] = ()
    """Sizes of the benchmarks `sizes` and `recall`, instead of their own."""
    keep: Path | None = None
    """Directory where it leaves what it has filled, and finds it the next time."""


@dataclass(frozen=True)
class Line:
    """One program of a comparison, or one size of a series."""

    program: str
    figures: Mapping[str, str]
    """Heading → text with its unit."""
    ratio: float | None = None
    """Ours to this one's, more is better; None for ours and where nothing is compared."""
    aim: str = ""
    met: bool | None = None


@dataclass(frozen=True)
class Finding:
    """One table."""

    title: str
    lines: Sequence[Line]
    notes: Sequence[str] = ()
    ratios: Mapping[str, float] = field(default_factory=dict)
    """Ratios that the guard compares with an earlier run: names that stay, more is better."""


class Benchmark(Protocol):
    """Starts the servers that it needs below `directory`, and ends what it started."""

    async def __call__(self, form: Form, directory: Path) -> Sequence[Finding]: ...


def headings(finding: Finding) -> list[str]:
    """Headings of its table, from left to right: only those with something below them."""
    figures = dict.fromkeys(name for line in finding.lines for name in line.figures)
    ratio = ["ratio"] if any(line.ratio is not None for line in finding.lines) else []
    aim = ["aim", "met"] if any(line.aim for line in finding.lines) else []
    return ["", *figures, *ratio, *aim]


def cells(line: Line, names: Sequence[str]) -> list[str]:
    """Cells of one row below `names`."""
    known = {
        **line.figures,
        "ratio": "" if line.ratio is None else f"{line.ratio:.2f} ×",
        "aim": line.aim,
        "met": "" if line.met is None else ("yes" if line.met else "**no**"),
    }
    return [line.program, *(known.get(name, "") for name in names[1:])]


def show(finding: Finding, console: Console) -> None:
    names = headings(finding)
    table = Table(title=finding.title, title_justify="left")
    for name in names:
        table.add_column(name, justify="right" if name else "left")
    for line in finding.lines:
        table.add_row(*(cell.replace("**", "") for cell in cells(line, names)))
    console.print(table)
    for note in finding.notes:
        console.print(f"  {note}")


def as_markdown(finding: Finding) -> str:
    names = headings(finding)
    rows = [names, ["---", *("---:" for _ in names[1:])], *(cells(line, names) for line in finding.lines)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n\n".join([f"### {finding.title}", table, *finding.notes]) + "\n"


def as_json(findings: Mapping[str, Sequence[Finding]], form: Form) -> str:
    """Findings with the machine that they are from: a figure without its machine says nothing."""
    kept = {
        "machine": machine(),
        "form": form._asdict() | {"keep": str(form.keep or "")},
        "ratios": {name: value for some in findings.values() for one in some for name, value in one.ratios.items()},
        "findings": {
            name: [
                {"title": one.title, "notes": list(one.notes), "lines": [vars(line) for line in one.lines]}
                for one in some
            ]
            for name, some in findings.items()
        },
    }
    return json.dumps(kept, indent=2, ensure_ascii=False) + "\n"


def machine() -> dict[str, str]:
    """Processor, cores, memory, system, versions."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    models = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{pages / (1 << 30):.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
    }
