"""Memory of a segmenter with few and many open conversations, and the speed of recovery of lost state."""

import asyncio
import json
import math
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afterword.embedded import EmbeddedStack
from benchmarks import deadlines
from benchmarks.deployment import Deployment
from benchmarks.open_conversations import fill
from benchmarks.processes import Worker
from benchmarks.suite import Finding, Form, Line

PARTITIONS = 4
SIZES = (10_000, 100_000, 1_000_000)
"""Open conversations: each is three records and three rows."""
COMPARED = 100_000
"""The size at which recovery and plain reading alternate."""
FEW = 50_000
MEGABYTE = 1_000_000
AIM_RATIO = 0.8
AIM_RATE = 100_000


@dataclass(frozen=True)
class Pass:
    """Pass over all records of the changelogs."""

    records: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds


@dataclass(frozen=True)
class Recovery:
    """Recovery without local state. `took`: of the replay alone; `ready_seconds`: from the start of the process."""

    took: Pass
    ready_seconds: float
    memory_bytes: int
    own_bytes: int
    """Bytes of these that are no mapped file: the rest is mostly libraries, which processes share."""
    peak_bytes: int


@dataclass(frozen=True)
class Size:
    conversations: int
    reads: Sequence[Pass]
    recoveries: Sequence[Recovery]
    lateness: deadlines.Lateness | None = None

    @property
    def ratio(self) -> float:
        """Recovery to reading, median of the rounds."""
        return statistics.median(
            ours.took.rate / theirs.rate for ours, theirs in zip(self.recoveries, self.reads, strict=True)
        )

    @property
    def memory_bytes(self) -> float:
        return statistics.median(one.memory_bytes for one in self.recoveries)


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    """The largest one goes on with deadlines, which saves filling it twice."""
    rounds = {FEW: 3} if form.short else {size: form.rounds if size == COMPARED else 1 for size in SIZES}
    async with EmbeddedStack(directory / "stack") as stack:
        sizes = [await look(stack, directory, size, count, size == SIZES[-1]) for size, count in rounds.items()]
    found = [finding(sizes)]
    return found + [deadlines.finding(size.conversations, size.lateness) for size in sizes if size.lateness]


async def look(stack: EmbeddedStack, directory: Path, conversations: int, rounds: int, with_deadlines: bool) -> Size:
    deployed = Deployment(stack, directory, f"open-{conversations}", PARTITIONS, deadlines.SETTINGS)
    await deployed.make_topics()
    await fill(deployed, conversations)
    reads, recoveries, lateness = [], [], None
    for number in range(rounds):
        reads.append(await asyncio.to_thread(read, deployed))
        shutil.rmtree(deployed.state, ignore_errors=True)
        began = time.monotonic()
        async with deployed.segmenter() as segmenter:
            recoveries.append(await recovery(deployed, segmenter, began))
            if with_deadlines and number == rounds - 1:
                lateness = await deadlines.look(deployed, segmenter)
        segmenter.process.log.unlink()
    shutil.rmtree(deployed.state)
    return Size(conversations, reads, recoveries, lateness)


def read(deployed: Deployment) -> Pass:
    """Read with a consumer that does nothing else, in a process of its own."""
    topics = sorted({changelog.topic for changelog in deployed.changelogs()})
    module = [sys.executable, "-m", "benchmarks.programs.read_changelogs"]
    arguments = [deployed.stack.bootstrap_servers, str(deployed.partitions), *topics]
    told = subprocess.run([*module, *arguments], check=True, capture_output=True, text=True)
    return Pass(**json.loads(told.stdout))


async def recovery(deployed: Deployment, segmenter: Worker, began: float) -> Recovery:
    await segmenter.until_ready()
    ready, cpu = time.monotonic() - began, segmenter.cpu_seconds
    told = recovered(segmenter.process.log.read_text().splitlines())
    if len(told) != deployed.partitions or not all(line["rebuilt"] or line["records"] for line in told):
        raise RuntimeError(f"not every partition was recovered once: {told}")
    # all partitions begin together, when the group has been joined
    took = Pass(sum(line["records"] for line in told), max(line["seconds"] for line in told), cpu)
    return Recovery(took, ready, *[segmenter.memory_bytes(name) for name in ("VmRSS", "RssAnon", "VmHWM")])


def recovered(log: Iterable[str]) -> list[Mapping[str, Any]]:
    """The lines of a worker's log that tell of a partition's recovery."""
    lines = [json.loads(line) for line in log if line.startswith("{")]
    return [line for line in lines if line.get("event") == "recovered"]


def finding(sizes: Sequence[Size]) -> Finding:
    title = f"memory and recovery: open conversations, one segmenter, {PARTITIONS} partitions, no local state"
    notes = [
        "RSS: resident memory of the process when it is ready; its own: without mapped files, which are its libraries;",
        "most: until then. Sub-linear: a hundred times the conversations take less than ten times the memory.",
        "recovery: records of the changelogs that one worker replays in a second; reading: those that a plain",
        "aiokafka consumer reads, read_committed, doing nothing with them. ratio: recovery to reading.",
        "The changelogs were written directly, with rows of the segmenter's and transactions of the engine's.",
    ]
    ratios = {"memory/recovery": sizes[min(1, len(sizes) - 1)].ratio}
    return Finding(title, [line(size, sizes[0]) for size in sizes], notes, ratios)


def line(size: Size, smallest: Size) -> Line:
    rate = statistics.median(one.took.rate for one in size.recoveries)
    reading = statistics.median(one.rate for one in size.reads)
    peak = max(one.peak_bytes for one in size.recoveries)
    figures = {
        "RSS": f"{size.memory_bytes / MEGABYTE:.0f} MB",
        "its own": f"{statistics.median(one.own_bytes for one in size.recoveries) / MEGABYTE:.0f} MB",
        "most": f"{peak / MEGABYTE:.0f} MB",
        "records": f"{size.reads[0].records:,}",
        "recovery": f"{rate:,.0f}/s",
        "CPU": f"{statistics.median(microseconds(one.took) for one in size.recoveries):.1f} µs each",
        "reading": f"{reading:,.0f}/s",
        "its CPU": f"{statistics.median(microseconds(one) for one in size.reads):.1f} µs each",
        "until ready": f"{statistics.median(one.ready_seconds for one in size.recoveries):.1f} s",
    }
    fast = rate >= AIM_RATE or size.ratio >= AIM_RATIO
    sublinear = size.memory_bytes / smallest.memory_bytes <= math.sqrt(size.conversations / smallest.conversations)
    aim = f"≥ {AIM_RATE:,}/s or ≥ {AIM_RATIO}; RSS sub-linear"
    return Line(f"{size.conversations:,}", figures, size.ratio, aim, fast and sublinear)


def microseconds(took: Pass) -> float:
    """CPU time for each record; a worker's has its start in it."""
    return took.cpu_seconds / took.records * 1e6
