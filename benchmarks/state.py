"""Cost of a message's state, and that it is the same however long its episode is."""

import asyncio
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
from rocksdict import Options, Rdict

from afterword.embedded import EmbeddedStack
from afterword.schemas.base import rfc3339
from benchmarks.deployment import Deployment
from benchmarks.load import BEGIN, SENTENCE
from benchmarks.suite import Finding, Form, Line

LENGTHS = (5, 20, 100, 500)
"""Messages of an episode. Each divides the numbers of messages below, so that nothing is pending where is measured."""
CONVERSATIONS = 40
WINDOW = 200
"""`dedupe_window`: small enough to be full before the measuring begins, so that rows are deleted as they are made."""
MESSAGES, FEWER = 500, 300
"""Messages of each conversation, before the measuring and again while it lasts; the guard's are fewer."""
MESSAGE_BYTES = 300
CATCHING_UP = 2000
"""The default `max_batch`: 50 messages of each conversation in a transaction."""
FLAT = 0.1


@dataclass(frozen=True)
class Cost:
    """Bytes for each message, of segments of the changelogs, of files of RocksDB, and that were written to disk."""

    length: int
    changelogs: float
    kept: float
    written: float


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    """One round is enough: bytes are counted, not timed. The guard's has two lengths."""
    lengths, count = ((5, 100), FEWER) if form.short else (LENGTHS, MESSAGES)
    behind = []
    async with EmbeddedStack(directory / "stack") as stack:
        live = [await cost(stack, directory, length, CONVERSATIONS, count) for length in lengths]
        if not form.short:
            behind = [await cost(stack, directory, length, CATCHING_UP, count) for length in lengths]
    title = "state: bytes for each message of 300, {} conversations, a batch has {} of each"
    found = [finding(title.format(CONVERSATIONS, "one message"), live)]
    return found + ([catching_up(title.format(CONVERSATIONS, "50 messages"), behind)] if behind else [])


async def cost(stack: EmbeddedStack, directory: Path, length: int, max_batch: int, count: int) -> Cost:
    """Cost of `count` messages of each conversation, after as many that fill the window."""
    deployed = Deployment(stack, directory, f"state-{length}-{max_batch}", 1, settings(length, max_batch))
    await deployed.make_topics()
    total = count * CONVERSATIONS
    await deployed.produce(messages(0, count), 0)
    async with deployed.segmenter() as segmenter:
        await deployed.until_committed(total)
        before = segments(stack, deployed), segmenter.written_bytes
        await deployed.produce(messages(count, 2 * count), 0)
        await deployed.until_committed(2 * total)
        after = segments(stack, deployed), segmenter.written_bytes
    changelogs, written = ((now - then) / total for then, now in zip(before, after, strict=True))
    kept = await asyncio.to_thread(compacted_bytes, deployed.state)
    return Cost(length, changelogs, kept / (WINDOW * CONVERSATIONS), written)


def settings(length: int, max_batch: int) -> dict[str, Any]:
    """Episodes of exactly that length: nothing else ends one."""
    most = 10**9
    episodes = {
        "trigger": length,
        "trigger_tokens": most,
        "max_episode_size": length,
        "max_episode_tokens": most,
        "dedupe_window": WINDOW,
    }
    return {"episodes": episodes, "engine": {"max_batch": max_batch}}


def messages(first: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    """Key and value, 300 bytes: the conversations take turns, so that a batch has as much of each as of any other."""
    for number in range(first, end):
        for conversation in range(CONVERSATIONS):
            yield message(f"conversation-{conversation:08}", f"m-{number:08}", number)


def message(conversation: str, name: str, second: int) -> tuple[bytes, bytes]:
    """`second`: of its `sent_at`, from the beginning."""
    fields = {
        "id": name,
        "conversation_id": conversation,
        "user_id": "u-1",
        "role": "user",
        "content": "",
        "sent_at": rfc3339(BEGIN + timedelta(seconds=second)),
    }
    fields["content"] = SENTENCE[: MESSAGE_BYTES - len(orjson.dumps(fields))]
    return conversation.encode(), orjson.dumps(fields)


def segments(stack: EmbeddedStack, deployed: Deployment) -> int:
    """Bytes of the changelogs' segments: batches as the broker keeps them, with bookmarks and commit markers.

    The broker compacts no segment that it still writes to, and rolls one at a gigabyte: all that was appended is there.
    """
    logs = stack.directory / "kafka" / "broker-1" / "logs"
    topics = [logs / f"{changelog.topic}-{changelog.partition}" for changelog in deployed.changelogs()]
    return sum(file.stat().st_size for topic in topics for file in topic.glob("*.log"))


def compacted_bytes(state: Path) -> int:
    """Size of RocksDB's tables when nothing is left of rows that were overwritten or deleted."""
    total = 0
    for path in {found.parent for found in state.rglob("CURRENT")}:
        database = Rdict(str(path), Options(raw_mode=True))
        database.compact_range(None, None)
        database.close()
        total += sum(file.stat().st_size for file in path.glob("*.sst"))
    return total


def spread(values: Sequence[float]) -> list[float]:
    """Relative difference of each from the median of all."""
    middle = statistics.median(values)
    return [value / middle - 1 for value in values]


def finding(title: str, costs: Sequence[Cost]) -> Finding:
    off = zip(spread([cost.changelogs for cost in costs]), spread([cost.written for cost in costs]), strict=True)
    lines = [judged(line(cost), *away) for cost, away in zip(costs, off, strict=True)]
    notes = [
        "changelogs: growth of their segments on the broker. written: by the worker, as Linux counts it.",
        "kept: RocksDB's tables, compacted, for each message in the window of duplicates, while nothing is pending.",
    ]
    least, most = min(cost.changelogs for cost in costs), max(cost.changelogs for cost in costs)
    return Finding(title, lines, notes, {"state/flat": least / most})


def catching_up(title: str, costs: Sequence[Cost]) -> Finding:
    """No aim: a message whose episode ends in the batch that it came with is never written whole."""
    return Finding(title, [line(cost) for cost in costs])


def line(cost: Cost) -> Line:
    kinds = {"changelogs": cost.changelogs, "written": cost.written, "kept": cost.kept}
    return Line(f"episodes of {cost.length}", {kind: f"{count:.0f} B" for kind, count in kinds.items()})


def judged(line: Line, changelogs: float, written: float) -> Line:
    """Line with the differences from the medians of its series."""
    figures = {**line.figures, "off": f"{changelogs:+.1%}, {written:+.1%}"}
    return Line(line.program, figures, None, f"± {FLAT:.0%}", max(abs(changelogs), abs(written)) <= FLAT)
