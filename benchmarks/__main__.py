"""Every benchmark, one after the other: tables, ratios, and a JSON file.

python -m benchmarks [--only WORD] [--rounds 5] [--short] [--json FILE] [--markdown FILE]
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import (
    archiver,
    context,
    engine,
    latency,
    memory,
    partitions,
    segmenter,
    slots,
    startup,
    state,
    summarizer,
)
from benchmarks.suite import Benchmark, Finding, Form, as_json, as_markdown, show

BENCHMARKS: Mapping[str, Benchmark] = {
    "engine": engine.run,
    "segmenter": segmenter.run,
    "partitions": partitions.run,
    "state": state.run,
    "memory": memory.run,
    "startup": startup.run,
    "latency": latency.run,
    "slots": slots.run,
    "summarizer": summarizer.run,
    "archiver": archiver.run,
    "context": context.run,
}


async def run_all(wanted: Mapping[str, Benchmark], form: Form, console: Console) -> dict[str, Sequence[Finding]]:
    findings = {}
    for name, benchmark in wanted.items():
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="afterword-bench-") as directory:
            findings[name] = await benchmark(form, Path(directory))
        for finding in findings[name]:
            show(finding, console)
        console.print(f"  {name} took {time.monotonic() - began:.0f} s")
    return findings


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ours beside others, in one run.")
    parser.add_argument("--only", metavar="WORD", default="", help="benchmarks whose name has this word in it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="the guard's form")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    form = Form(given.rounds, given.short)
    wanted = {name: one for name, one in BENCHMARKS.items() if given.only in name}
    findings = asyncio.run(run_all(wanted, form, Console(width=140)))
    markdown = "\n".join(as_markdown(finding) for some in findings.values() for finding in some)
    for path, text in ((given.json, as_json(findings, form)), (given.markdown, markdown)):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


if __name__ == "__main__":
    main()
