"""The segmenter with all its rules, beside the same rules by hand, on quixstreams and on stock Faust."""

from collections.abc import Sequence
from pathlib import Path

from afterword.embedded import EmbeddedStack
from benchmarks import rivals
from benchmarks.contest import TAIL, Course, Program, compete, lay, python, table
from benchmarks.load import messages
from benchmarks.suite import Finding, Form
from streams.segmenter.tables import TABLES

PARTITIONS = 4
OURS = Program("segmenter", python("engine"))
BY_HAND = Program("by hand", python("by_hand"), 1.2)
STOCK_FAUST = Program("stock Faust", python("stock_faust"), 5.0, 1 / 3)


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    """Of each round: this many messages for every program, and a third of them for the slow one."""
    rounds, count, conversations = (3, 20_000, 2_000) if form.short else (form.rounds, 60_000, 5_000)
    quix = rivals.quixstreams("quix_segmenter", 1.2, 0.5)
    others = [BY_HAND] if form.short else [BY_HAND, *([quix.program] if quix.program else []), STOCK_FAUST]
    course = Course("messages", count, PARTITIONS, TABLES)
    async with EmbeddedStack(directory / "stack") as stack:
        await lay(stack, course, messages(int(count * TAIL), conversations))
        results = await compete(stack, course, [OURS, *others], rounds)
    title = f"segmenter, all rules, {PARTITIONS} partitions, medians of {rounds} alternating rounds"
    notes = [quix.missing] if quix.missing else []
    return [table("segmenter", title, results, [OURS, *others], notes)]
