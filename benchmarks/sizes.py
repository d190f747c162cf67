"""The embedded default with more and more messages: what an operation costs, and to that of the smallest size.

Conversations of twenty messages, two episodes each, all of one user: turns of SuperDialseg's dialogues in random order.
The workers put them through the whole path, without an LLM, each size in a directory of its own, which `--keep` keeps
for the next time (`benchmarks/filling.py`). Then, one after the other: `afterword dev` is started on it, a few more
conversations are archived and summarized, and this process reads alone.
"""

import asyncio
import re
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from afterword import Memory, audit
from afterword.dev import CONFIG_FILE, ROLES
from afterword.embedded import EmbeddedStack, Process
from afterword.streams.settings import Settings, load_settings
from benchmarks.filling import (
    CONVERSATION_MESSAGES,
    EPISODE_MESSAGES,
    USER,
    Filled,
    Shape,
    fill,
    name_of,
    running,
    send,
    turns,
    until_done,
)
from benchmarks.processes import Worker, cpu_seconds, family, proportional_bytes, worker
from benchmarks.quantiles import quantile
from benchmarks.recall.corpora import LEAST_WORDS
from benchmarks.suite import Finding, Form, Line

SIZES = (10_000, 100_000, 1_000_000)
"""Messages; others are given with `--messages`. The largest takes so long to fill that it is kept, or left out."""
LONG = Shape(100_000, 100_000)
"""All messages in one conversation."""
CALLS, WARMING_CALLS = 200, 10
MORE_CONVERSATIONS = 250
"""Conversations that are added, to see what archiving and summarizing costs beside all that is there."""
SEED = 16
FLAT = 2.0
"""An operation's cost to that of the smallest size, at most."""
CONTEXT_SECONDS = (0.010, 0.040)
"""Aims of p50 and p99."""
RECALL_SECONDS = {100_000: 0.020, 1_000_000: 0.040}
"""Aims of p50, up to so many messages."""
AUDIT_SECONDS, AUDIT_MESSAGES = 10.0, 100_000
DEV_SECONDS = 10.0
STACK_BYTES = 1_500_000_000
START_SECONDS = 300.0
LOOK_SECONDS = 0.05
SAMPLE_SECONDS = 0.5
STOP_SECONDS = 120.0
WHOLE_PATH, CONTEXT, EPISODES, RECALL, AUDIT = "whole path", "context", "episodes", "recall", "audit"
ARCHIVE, SUMMARISE = "archive: CPU of archiver and MongoDB", "summarise: CPU of summarizer and MongoDB"
LONG_CONTEXT = "context of one conversation with all"
PAGE, READY = "`afterword dev` until it names its page", "`afterword dev` until all workers are ready"
HEALTH = re.compile(r'"port": (\d+), "event": "health_server_started"')


@dataclass(frozen=True)
class Measured:
    """One operation at one size."""

    operation: str
    messages: int
    seconds: Sequence[float]
    """Duration of each call."""
    things: int = 1
    """Things that a call is done for, such as messages: its cost is that of one of them."""
    is_flat: bool = True
    """Its cost is to stay the same, whatever the size."""

    @property
    def cost(self) -> float:
        """Seconds: the median of a call, or of a thing in it."""
        return quantile(self.seconds, 0.5) / self.things


@dataclass(frozen=True)
class Footprint:
    """Memory (PSS) of all processes of `afterword dev` together."""

    messages: int
    idle_bytes: int
    most_bytes: int
    """The most that was seen while conversations were added."""


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    """Measure in the long form only: filling takes minutes."""
    sizes = sorted(form.messages) or ([] if form.short else SIZES if form.keep else SIZES[:-1])
    found: list[Measured] = []
    memory: list[Footprint] = []
    for size in sizes:
        operations, footprint = await measured(Shape(size), form.keep or directory)
        found += operations
        memory.append(footprint)
        if size == LONG.messages:
            found.append(await long_context(form.keep or directory))
    return [finding(found, memory)] if found else []


async def measured(shape: Shape, parent: Path) -> tuple[list[Measured], Footprint]:
    directory, size = parent / shape.name, shape.messages
    filled = await fill(directory, shape)
    whole = [] if filled.seconds is None else [Measured(WHOLE_PATH, size, [filled.seconds], size)]
    starts, footprint = await dev(directory, size)
    async with running(directory) as (stack, settings):
        added = await add(stack, settings, size)
        audited = await timed_audit(settings, size, Filled.of(directory).messages)
        return [*whole, *starts, *added, *await read(settings, shape), audited], footprint


async def timed_audit(settings: Settings, size: int, messages: int) -> Measured:
    """`messages`: with those that were added. Raises: RuntimeError unless it is clean and all is there."""
    began = time.monotonic()
    report = await audit.run(settings)
    seconds = time.monotonic() - began
    if not report.clean or report.episodes["total"] != messages // EPISODE_MESSAGES:
        raise RuntimeError("\n".join(report.lines()))
    return Measured(AUDIT, size, [seconds], messages)


async def dev(directory: Path, size: int) -> tuple[list[Measured], Footprint]:
    """Start `afterword dev` on the directory, and add a few conversations."""
    began = time.monotonic()
    async with started_dev(directory) as process:
        await until_told(process.log, "page ")
        named = time.monotonic() - began
        for role in ROLES:
            port = await until_told(directory / "logs" / f"{role}.log", HEALTH)
            await Worker(process, int(port)).until_ready()
        ready = time.monotonic() - began
        pids = family(process.pid)
        idle, settings = proportional_bytes(pids), settings_of_dev(directory)
        most = await most_bytes(pids, add_some(settings, directory))
    starts = [Measured(PAGE, size, [named], is_flat=False), Measured(READY, size, [ready], is_flat=False)]
    return starts, Footprint(size, idle, max(idle, most))


@asynccontextmanager
async def started_dev(directory: Path) -> AsyncIterator[Process]:
    """`afterword dev` on this directory, whose logs begin anew; stopped at the end."""
    for log in (directory / "logs").glob("*.log"):
        log.unlink()
    command = [sys.executable, "-m", "afterword", "dev", "--data-dir", str(directory)]
    process = Process("dev", command, directory / "logs" / "dev.log")
    try:
        yield process
    finally:
        await asyncio.to_thread(process.stop, STOP_SECONDS)


def settings_of_dev(directory: Path) -> Settings:
    """The settings that it wrote for other terminals."""
    return load_settings(**tomllib.loads((directory / CONFIG_FILE).read_text()))


async def until_told(log: Path, what: str | re.Pattern[str]) -> str:
    """Wait until a log has it, and return it, or its first group. Raises: TimeoutError."""
    pattern = re.compile(what)
    async with asyncio.timeout(START_SECONDS):
        while not (found := pattern.search(text_of(log))):  # noqa: ASYNC110 – a file sets no event
            await asyncio.sleep(LOOK_SECONDS)
        return found[pattern.groups and 1]


def text_of(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


async def most_bytes(pids: Sequence[int], work: Awaitable[None]) -> int:
    """The most memory that the processes have until the work is done."""
    working, most = asyncio.ensure_future(work), 0
    while not working.done():
        most = max(most, await asyncio.to_thread(proportional_bytes, pids))
        await asyncio.wait([working], timeout=SAMPLE_SECONDS)
    await working
    return most


async def add_some(settings: Settings, directory: Path) -> None:
    await send(settings, directory, more(directory), CONVERSATION_MESSAGES, is_done=True)
    await until_done(settings, *ROLES)


def more(directory: Path) -> range:
    """The next conversations."""
    first = Filled.of(directory).conversations
    return range(first, first + MORE_CONVERSATIONS)


async def add(stack: EmbeddedStack, settings: Settings, size: int) -> list[Measured]:
    """Add a few conversations: archive them, and then summarize them, each with its own worker alone."""
    messages, environment = MORE_CONVERSATIONS * CONVERSATION_MESSAGES, stack.environment()
    async with worker("archiver", stack.directory, environment) as archiver:
        await archiver.until_ready()
        before = cpu_with_mongo(stack, archiver)
        await send(settings, stack.directory, more(stack.directory), CONVERSATION_MESSAGES, is_done=True)
        await until_done(settings, "archiver")
        archived = cpu_with_mongo(stack, archiver) - before
    async with AsyncExitStack() as workers:
        summarizer = await workers.enter_async_context(worker("summarizer", stack.directory, environment))
        await summarizer.until_ready()
        before = cpu_with_mongo(stack, summarizer)
        await workers.enter_async_context(worker("segmenter", stack.directory, environment))
        await until_done(settings, "segmenter", "summarizer")
        summarized = cpu_with_mongo(stack, summarizer) - before
    return [
        Measured(ARCHIVE, size, [archived], messages),
        Measured(SUMMARISE, size, [summarized], messages // EPISODE_MESSAGES),
    ]


def cpu_with_mongo(stack: EmbeddedStack, of: Worker) -> float:
    return of.cpu_seconds + cpu_seconds(stack.mongo.process.pid)


async def long_context(parent: Path) -> Measured:
    directory = parent / LONG.name
    await fill(directory, LONG)
    async with running(directory) as (_, settings), Memory.from_settings(settings) as memory:
        asked = [name_of(0)] * (CALLS + WARMING_CALLS)
        seconds = [await timed(memory.context, one) for one in asked]
        return Measured(LONG_CONTEXT, LONG.messages, seconds[WARMING_CALLS:])


async def read(settings: Settings, shape: Shape) -> list[Measured]:
    """Read conversations at random, and ask what has been said."""
    chance, size = Random(SEED), shape.messages
    names = [name_of(chance.randrange(shape.conversations)) for _ in range(CALLS + WARMING_CALLS)]
    questions = chance.choices([turn for turn in turns() if len(turn.split()) >= LEAST_WORDS], k=len(names))
    async with Memory.from_settings(settings) as memory:
        operations: Mapping[str, tuple[Sequence[str], Callable[[str], Awaitable[object]]]] = {
            CONTEXT: (names, memory.context),
            EPISODES: (names, lambda name: all_episodes(memory, name)),
            RECALL: (questions, lambda question: memory.recall(question, user_id=USER, tenant_id=None)),
        }
        return [
            Measured(operation, size, [await timed(ask, one) for one in asked][WARMING_CALLS:])
            for operation, (asked, ask) in operations.items()
        ]


async def all_episodes(memory: Memory, conversation: str) -> object:
    return (await memory.episodes(conversation)).episodes


async def timed(ask: Callable[[str], Awaitable[object]], one: str) -> float:
    """Raises: RuntimeError when nothing was found: it would be fast."""
    began = time.monotonic()
    if not await ask(one):
        raise RuntimeError(f"nothing was found of {one!r}")
    return time.monotonic() - began


def finding(found: Sequence[Measured], memory: Sequence[Footprint] = ()) -> Finding:
    smallest = {one.operation: one for one in sorted(found, key=lambda one: one.messages, reverse=True)}
    lines = [line(one, smallest[one.operation]) for one in sorted(found, key=lambda one: (one.operation, one.messages))]
    notes = [
        f"{CALLS} calls one after the other, the workers stopped. What has one duration was done once: “archive” and",
        f"“summarise” with {MORE_CONVERSATIONS} more conversations, in CPU seconds.",
        "A ratio is the cost at the smallest size to the cost here.",
    ]
    lines += map(memory_line, sorted(memory, key=lambda one: one.messages))
    return Finding("sizes: the embedded default, without an LLM, one user", lines, notes)


def line(one: Measured, smallest: Measured) -> Line:
    if len(one.seconds) == 1:
        figures = {"in all": f"{one.seconds[0]:,.1f} s"}
        if one.things > 1:
            figures["each"] = f"{one.cost * 1e6:,.0f} µs"
    else:
        figures = {f"p{share * 100:.0f}": f"{quantile(one.seconds, share) * 1000:,.1f} ms" for share in (0.5, 0.99)}
    bounds = dict(aims(one))
    ratio = None
    if one is not smallest and one.is_flat:
        ratio = smallest.cost / one.cost
        bounds[f"≤ {FLAT:g} × the smallest's"] = one.cost <= FLAT * smallest.cost
    name = f"{one.operation}, {one.messages:,} messages"
    return Line(name, figures, ratio, ", ".join(bounds), all(bounds.values()) if bounds else None)


def memory_line(one: Footprint) -> Line:
    figures = {"idle": f"{one.idle_bytes / 1e6:,.0f} MB", "most": f"{one.most_bytes / 1e6:,.0f} MB"}
    aim = f"≤ {STACK_BYTES / 1e9:g} GB"
    return Line(f"memory of the stack, {one.messages:,} messages", figures, None, aim, one.most_bytes <= STACK_BYTES)


def aims(one: Measured) -> Iterator[tuple[str, bool]]:
    """Aims of its own, and whether each is met."""
    if one.operation in (CONTEXT, LONG_CONTEXT):
        for share, most in zip((0.5, 0.99), CONTEXT_SECONDS, strict=True):
            yield f"p{share * 100:.0f} ≤ {most * 1000:.0f} ms", quantile(one.seconds, share) <= most
    if one.operation == RECALL:
        for most in (seconds for size, seconds in RECALL_SECONDS.items() if one.messages <= size):
            yield f"p50 ≤ {most * 1000:.0f} ms", quantile(one.seconds, 0.5) <= most
            return
    if one.operation == AUDIT and one.messages <= AUDIT_MESSAGES:
        yield f"≤ {AUDIT_SECONDS:.0f} s", one.seconds[0] <= AUDIT_SECONDS
    if one.operation in (PAGE, READY):
        yield f"≤ {DEV_SECONDS:.0f} s", one.seconds[0] <= DEV_SECONDS
