"""The engine alone: a counter per key, state, changelog and exactly-once on, beside four others."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from afterword.embedded import EmbeddedStack
from benchmarks import rivals
from benchmarks.contest import TAIL, Course, Program, compete, lay, python, table
from benchmarks.load import amounts
from benchmarks.suite import Finding, Form

PARTITIONS = 4
KEYS = 100_000
WARM = 0.3
"""The part of a round before the clock starts: Java compiles meanwhile what is run often."""
OURS = Program("engine", python("counter_engine"))
BY_HAND = Program("by hand", python("counter_by_hand"), 1.5, 0.5)
STOCK_FAUST = Program("stock Faust", python("counter_stock_faust"), 10.0, 0.05)


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    """Each round: 200,000 messages of 300 bytes, and a part of them for the slower programs."""
    rounds, count = (3, 60_000) if form.short else (form.rounds, 200_000)
    programs, notes = await asyncio.to_thread(_programs, form, directory)
    course = Course("amounts", count, PARTITIONS, ["totals"], after=WARM)
    async with EmbeddedStack(directory / "stack") as stack:
        await lay(stack, course, amounts(int(count * TAIL), KEYS))
        results = await compete(stack, course, programs, rounds)
    title = f"engine: a counter for each of {KEYS:,} keys, {PARTITIONS} partitions, medians of {rounds} rounds"
    return [table("engine", title, results, programs, notes)]


def _programs(form: Form, directory: Path) -> tuple[list[Program], list[str]]:
    if form.short:  # the guard's ratio has to be had from a fresh clone in seconds
        return [OURS, BY_HAND], []
    others = (
        rivals.quixstreams("quix_counter", 1.3, 0.5),
        rivals.kafka_streams("KafkaStreamsCounter", 0.9, directory / "classes"),
    )
    found = [other.program for other in others if other.program]
    return [OURS, BY_HAND, STOCK_FAUST, *found], [other.missing for other in others if other.missing]
