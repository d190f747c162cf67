"""Every benchmark, one after the other: tables, ratios, and a JSON file.

python -m benchmarks [--only WORD] [--rounds 5] [--short] [--load RATE]… [--messages COUNT]…
  [--keep DIRECTORY] [--json FILE] [--markdown FILE]
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka.errors import KafkaError
from httpx import HTTPError
from pymongo.errors import PyMongoError
from rich.console import Console

from afterword.streams.errors import StoreUnavailable
from benchmarks import (
    archiver,
    context,
    engine,
    index,
    latency,
    memory,
    partitions,
    path,
    rebalance,
    recalling,
    resident,
    segmenter,
    serve,
    sizes,
    slots,
    startup,
    state,
    summarizer,
)
from benchmarks.suite import Benchmark, Finding, Form, as_json, as_markdown, show

BENCHMARKS: Mapping[str, Benchmark] = {
    "engine": engine.run,
    "segmenter": segmenter.run,
    "shifts": segmenter.run_topics,
    "partitions": partitions.run,
    "rebalance": rebalance.run,
    "state": state.run,
    "memory": memory.run,
    "startup": startup.run,
    "latency": latency.run,
    "path": path.run,
    "slots": slots.run,
    "summarizer": summarizer.run,
    "resident": resident.run,
    "archiver": archiver.run,
    "context": context.run,
    "index": index.run,
    "recall": recalling.run,
    "serve": serve.run,
    "sizes": sizes.run,
}


FAILURES = (RuntimeError, TimeoutError, KafkaError, PyMongoError, StoreUnavailable, HTTPError)
"""Failures of one benchmark, mostly on a machine that is too busy: the others go on."""


@dataclass
class Run:
    """Written after each benchmark: what is cut off has kept what it found."""

    form: Form
    json: Path | None
    markdown: Path | None
    findings: dict[str, Sequence[Finding]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    async def one(self, name: str, benchmark: Benchmark, console: Console) -> None:
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="afterword-bench-") as directory:
                self.findings[name] = await benchmark(self.form, Path(directory))
        except FAILURES as error:
            self.failed.append(name)
            console.print(f"  {name} failed: {type(error).__name__}: {error}")
        for finding in self.findings.get(name, ()):
            show(finding, console)
        console.print(f"  {name} took {time.monotonic() - began:.0f} s")
        self.write()

    def write(self) -> None:
        markdown = "\n".join(as_markdown(finding) for some in self.findings.values() for finding in some)
        for file, text in ((self.json, as_json(self.findings, self.form)), (self.markdown, markdown)):
            if file:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)


async def run_all(run: Run, wanted: Mapping[str, Benchmark], console: Console) -> None:
    for name, benchmark in wanted.items():
        await run.one(name, benchmark, console)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ours beside others, in one run.")
    parser.add_argument("--only", metavar="WORD", default="", help="benchmarks whose name has this word in it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="the guard's form")
    load = "messages/s of the benchmark latency, instead of shares of the capacity that it finds; may be repeated"
    parser.add_argument("--load", metavar="RATE", type=float, action="append", default=[], help=load)
    count = "messages of the benchmarks sizes and recall, instead of their own; may be repeated"
    parser.add_argument("--messages", metavar="COUNT", type=int, action="append", default=[], help=count)
    kept = "directory where the benchmark sizes leaves what it has filled, and finds it the next time"
    parser.add_argument("--keep", metavar="DIRECTORY", type=Path, help=kept)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    form = Form(given.rounds, given.short, tuple(given.load), tuple(given.messages), given.keep)
    run = Run(form, given.json, given.markdown)
    wanted = {name: one for name, one in BENCHMARKS.items() if given.only in name}
    asyncio.run(run_all(run, wanted, Console(width=140)))
    if run.failed:
        sys.exit(f"failed: {', '.join(run.failed)}")


if __name__ == "__main__":
    main()
