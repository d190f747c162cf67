"""The segmenter on 1, 8 and 32 partitions, and with two workers, beside itself on 4 with one: what a message costs.

Every partition has as many conversations and messages as any other, whatever their number: a batch that has more
messages of each conversation writes fewer rows for each of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from afterword.embedded import EmbeddedStack
from afterword.streams.segmenter.state import TABLES
from benchmarks.contest import TAIL, Course, Results, lay, run_once
from benchmarks.load import messages
from benchmarks.segmenter import OURS
from benchmarks.suite import Finding, Form, Line

EACH = 5_000
LEAST = 48_000
"""Messages of a partition, and those that a round has at least."""
CONVERSATIONS = 410
"""Conversations of a partition."""
SETTLED = 0.25
"""The part of the messages before the clock starts: caches and databases of all partitions are in use by then."""
NO_WORSE = 0.95
"""Lowest ratio that counts as no worse: noise is more than nothing."""


class Shape(NamedTuple):
    partitions: int
    workers: int

    @property
    def name(self) -> str:
        return ", ".join(f"{n} {noun}{'s' * (n > 1)}" for n, noun in zip(self, ("partition", "worker"), strict=True))

    @property
    def course(self) -> Course:
        count = max(self.partitions * EACH, LEAST)
        return Course(f"messages-{self.partitions}", count, self.partitions, TABLES, self.workers, SETTLED)


USUAL = Shape(4, 1)
SHAPES = (USUAL, Shape(4, 2), Shape(1, 1), Shape(8, 1), Shape(32, 1))


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    """Nothing in the short form: what two workers do on two busy cores guards nothing."""
    if form.short:
        return []
    async with EmbeddedStack(directory / "stack") as stack:
        results = await _results(stack, form.rounds)
    return [finding(results, form.rounds)]


async def _results(stack: EmbeddedStack, rounds: int) -> Results:
    for partitions in dict.fromkeys(shape.partitions for shape in SHAPES):
        course = Shape(partitions, 1).course
        await lay(stack, course, messages(int(course.count * TAIL), partitions * CONVERSATIONS))
    results = Results({shape.name: [] for shape in SHAPES})
    for number in range(rounds):
        for shape in SHAPES:
            done = await run_once(stack, shape.course, replace(OURS, name=shape.name), number)
            results.rounds[shape.name].append(done)
    return results


def finding(results: Results, rounds: int) -> Finding:
    """The first shape is what the others are compared with, by messages for each CPU second."""
    title = f"segmenter, partitions and workers: messages for each CPU second, medians of {rounds} alternating rounds"
    ratios = {f"partitions/{shape.name}": results.leaner(shape.name, USUAL.name) for shape in SHAPES[1:]}
    return Finding(title, [_line(results, shape) for shape in SHAPES], ratios=ratios)


def _line(results: Results, shape: Shape) -> Line:
    name = shape.name
    figures = {"messages/s": f"{results.rate(name):,.0f}", "CPU µs each": f"{results.cpu(name):.0f}"}
    if shape == USUAL:
        return Line(name, figures)
    ratio = results.leaner(name, USUAL.name)
    return Line(name, figures, ratio, f"≥ {NO_WORSE}", ratio >= NO_WORSE)
