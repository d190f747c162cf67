"""The model beside what was measured, then from 10⁴ to 10⁹ messages a day.

python -m benchmarks.simulation [--bench build/bench.json] [--set NAME=VALUE] [--seed 1] [--markdown FILE]
python -m benchmarks.simulation --parameters | --measure
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

import orjson
from rich.console import Console

from benchmarks.simulation import report
from benchmarks.simulation.bottlenecks import decade
from benchmarks.simulation.capacity import need
from benchmarks.simulation.cell import simulate
from benchmarks.simulation.parameters import Parameters, changed, listed
from benchmarks.simulation.sizes import sizes
from benchmarks.simulation.transactions import transactions
from benchmarks.simulation.validation import calibrated, validate
from benchmarks.suite import Finding, as_markdown, show

LOADS = tuple(10.0**exponent for exponent in range(4, 10))


def extended(p: Parameters, seed: int) -> list[Finding]:
    needs = [need(load, p) for load in LOADS]
    found = [simulate(one, p, seed) for one in needs]
    return [
        report.workers(needs),
        report.stores(needs),
        report.calls(needs),
        report.simulated(needs, found),
        report.ends([decade(load, p) for load in LOADS]),
    ]


def findings(p: Parameters, bench: Path, seed: int) -> list[Finding]:
    """The comparison comes first, where there is something to compare with."""
    if not bench.exists():
        print(f"{bench} is not there: nothing to validate against. `make bench` writes it.")
        return extended(p, seed)
    measured = orjson.loads(bench.read_bytes())
    return [report.validated(validate(p, measured, seed)), *extended(calibrated(p, measured), seed)]


def setting(text: str) -> tuple[str, float]:
    """Raises: ValueError."""
    name, _, value = text.partition("=")
    return name, float(value)


def show_parameters(p: Parameters) -> None:
    for one in listed(p):
        print(f"{one.name} = {one.value:g} {one.unit}\n    {one.source}")


def measure() -> None:
    for name, value in {**sizes(), **asyncio.run(transactions())}.items():
        print(f"{name} = {value:.6g}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description="From 10⁴ to 10⁹ a day.")
    parser.add_argument("--bench", type=Path, default=Path("build/bench.json"), help="what `make bench` wrote")
    parser.add_argument("--set", dest="settings", metavar="NAME=VALUE", type=setting, action="append", default=[])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--parameters", action="store_true", help="print them, each with where it is from")
    parser.add_argument("--measure", action="store_true", help="sizes, tokens and transactions, on this machine")
    given = parser.parse_args(arguments)
    try:
        parameters = changed(Parameters(), dict(given.settings))
    except ValueError as error:
        parser.error(str(error))
    if given.parameters:
        show_parameters(parameters)
    elif given.measure:
        measure()
    else:
        tell(findings(parameters, given.bench, given.seed), given.markdown)


def tell(found: Sequence[Finding], markdown: Path | None) -> None:
    console = Console(width=160)
    for one in found:
        show(one, console)
    if markdown:
        markdown.write_text("\n".join(as_markdown(one) for one in found))


if __name__ == "__main__":
    main()
