"""The segmenter with all its rules, beside the same rules by hand, on quixstreams and on stock Faust.

And with topics that it finds in the text, beside itself without, and with flags at the same places.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import orjson

from afterword.embedded import EmbeddedStack
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.segmenter.state import TABLES
from afterword.streams.settings import Episodes
from afterword.streams.tokens import count_tokens
from benchmarks import rivals
from benchmarks.contest import TAIL, Course, Program, compete, lay, python, table
from benchmarks.load import dialogues, messages
from benchmarks.programs.rules import Record
from benchmarks.suite import Finding, Form

PARTITIONS = 4
NOON_MS = 1_767_268_800_000
DIALOGUE_MESSAGES = 30_000
DIALOGUE_CONVERSATIONS = 3_000
LONG_CONVERSATIONS = 60
"""Messages of each where topics are compared, six times as many as close episodes: most are in one, as in a service."""
WARM = 0.25
"""The part of those messages before the clock starts: no conversation is new any more."""
OURS = Program("segmenter", python("engine"))
BY_HAND = Program("by hand", python("by_hand"), 1.2)
BY_TEXT = Program("topics in the text", ("env", "AFTERWORD_EPISODES__TOPIC_SHIFT=auto", *python("engine")))
WITHOUT = Program("without", python("engine"), 0.8)
FLAGGED = "shifts-flagged"
BY_FLAGS = Program("flags at the same places", python("engine"), topic=FLAGGED)
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
    """Compare on messages that do not say where topics shift: what finds shifts makes more episodes, too.

    And on the same messages, which say it where the text does: the same episodes, so that only finding them differs.
    """
    count, rounds = (30_000, 3) if form.short else (60_000, form.rounds)
    course = Course("shifts", count, PARTITIONS, TABLES, after=WARM)
    async with EmbeddedStack(directory / "stack") as stack:
        told = list(dialogues(int(count * TAIL), count // LONG_CONVERSATIONS, flags=False))
        await lay(stack, course, told)
        await lay(stack, replace(course, topic=FLAGGED), flagged(told))
        return [await compared(stack, course, [BY_TEXT, WITHOUT, BY_FLAGS], rounds)]


def flagged(told: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Key and value of the messages: `is_continuation` is false where an episode begins that the text made, else true.

    `told`: messages without it, in conversations by their key.
    """
    flushes = [
        (key, b'{"type":"conversation.flush","conversation_id":%b}' % orjson.dumps(key.decode()))
        for key in dict.fromkeys(key for key, _ in told)
    ]
    records = [Record("messages", 0, at, NOON_MS, key, value) for at, (key, value) in enumerate([*told, *flushes])]
    segmenter = Segmenter(Episodes(topic_shift="auto"), "episodes", "dead-letters", {}, {}, count_tokens)
    episodes = [orjson.loads(sent.value or b"") for sent in segmenter.process(records, NOON_MS).outgoing]
    begin: set[str] = set()
    found: dict[str, bool] = {}
    for episode in episodes:
        if found.get(episode["conversation_id"]):
            begin.add(episode["messages"][0]["id"])
        found[episode["conversation_id"]] = episode["topic_model"] is not None
    messages = [(key, orjson.loads(value)) for key, value in told]
    return [(key, orjson.dumps(each | {"is_continuation": each["id"] not in begin})) for key, each in messages]


async def compared(
    stack: EmbeddedStack, course: Course, programs: Sequence[Program], rounds: int, notes: Sequence[str] = ()
) -> Finding:
    title = f"{course.topic}: all rules, {PARTITIONS} partitions, medians of {rounds} alternating rounds"
    return table(course.topic, title, await compete(stack, course, programs, rounds), programs, notes)
