"""The segmenter with all its rules, beside the same rules by hand, on quixstreams and on stock Faust.

And with topics that it finds in the text, beside itself without.
"""

from collections.abc import Sequence
from pathlib import Path

from afterword.embedded import EmbeddedStack
from afterword.streams.segmenter.state import TABLES
from benchmarks import rivals
from benchmarks.contest import TAIL, Course, Program, compete, lay, python, table
from benchmarks.load import dialogues, messages
from benchmarks.suite import Finding, Form

PARTITIONS = 4
DIALOGUE_MESSAGES = 30_000
DIALOGUE_CONVERSATIONS = 3_000
OURS = Program("segmenter", python("engine"))
BY_HAND = Program("by hand", python("by_hand"), 1.2)
BY_TEXT = Program("topics in the text", ("env", "AFTERWORD_EPISODES__TOPIC_SHIFT=auto", *python("engine")))
WITHOUT = Program("without", python("engine"), 0.8)
STOCK_FAUST = Program("stock Faust", python("stock_faust"), 5.0, 1 / 6)


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    """Run rounds of this many messages for every program, and a sixth of them for the slow one."""
    rounds, count, conversations = (3, 20_000, 2_000) if form.short else (form.rounds, 60_000, 5_000)
    made_up = Course("segmenter", count, PARTITIONS, TABLES)
    async with EmbeddedStack(directory / "stack") as stack:
        await lay(stack, made_up, messages(int(count * TAIL), conversations))
        if form.short:
            return [await compared(stack, made_up, [OURS, BY_HAND], rounds)]
        quix = rivals.quixstreams("quix_segmenter", 1.2, 0.5)
        programs, notes = (
            [OURS, BY_HAND, *([quix.program] if quix.program else [])],
            [quix.missing] * (not quix.program),
        )
        found = await compared(stack, made_up, [*programs, STOCK_FAUST], rounds, notes)
        real = Course("dialogues", DIALOGUE_MESSAGES, PARTITIONS, TABLES)
        await lay(stack, real, dialogues(int(DIALOGUE_MESSAGES * TAIL), DIALOGUE_CONVERSATIONS))
        return [found, await compared(stack, real, programs, rounds, notes)]


async def run_topics(form: Form, directory: Path) -> Sequence[Finding]:
    """Compare on messages that do not say where topics shift: what finds shifts makes more episodes, too."""
    count, rounds = (20_000, 3) if form.short else (DIALOGUE_MESSAGES, form.rounds)
    course = Course("shifts", count, PARTITIONS, TABLES)
    async with EmbeddedStack(directory / "stack") as stack:
        await lay(stack, course, dialogues(int(count * TAIL), DIALOGUE_CONVERSATIONS, flags=False))
        return [await compared(stack, course, [BY_TEXT, WITHOUT], rounds)]


async def compared(
    stack: EmbeddedStack, course: Course, programs: Sequence[Program], rounds: int, notes: Sequence[str] = ()
) -> Finding:
    title = f"{course.topic}: all rules, {PARTITIONS} partitions, medians of {rounds} alternating rounds"
    return table(course.topic, title, await compete(stack, course, programs, rounds), programs, notes)
