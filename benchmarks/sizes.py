"""Measures how the cost of operations grows with the number of messages, on the embedded stack.

Conversations have twenty messages in two episodes, all of one user, made of real dialogues' turns in random order. The
workers process them without an LLM, each size in its own directory, which `--keep` keeps for the next run. Then
`afterword dev` starts on it, more conversations are archived and summarized, and this process reads alone.
"""

import asyncio
import json
import re
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from afterword import Memory, MessageCreated, Producer
from afterword.embedded import EmbeddedStack, Process
from afterword.local.dev import CONFIG_FILE
from afterword.operating import audit
from afterword.operating.topics import ensure_topics
from afterword.streams.roles import ALL, ALWAYS_RUN, inputs_of
from afterword.streams.settings import Settings, load_settings
from benchmarks.data import LEAST_WORDS, turn_texts
from benchmarks.measuring import (
    Form,
    Running,
    cpu_seconds,
    family_bytes,
    megabytes,
    percentiles,
    quantile,
    ratio,
    show,
    until_consumed,
    worker,
)

SIZES, SHORT_SIZES = (5_000, 50_000), (500, 1_000)
CONVERSATION_MESSAGES, EPISODE_MESSAGES = 20, 10
AT_A_TIME = 100
"""Number of interleaved conversations."""
SENT_AT_A_TIME = 1_000
"""After this many conversations, their number is recorded as sent."""
MORE_CONVERSATIONS, SHORT_MORE = 250, 20
CALLS, WARMING_CALLS = 200, 10
USER = "u1"
SEED = 16
NOTE = "filled.json"
FILL_SECONDS, START_SECONDS, STOP_SECONDS = 24 * 3600.0, 300.0, 120.0
SAMPLE_SECONDS = 0.5
HEALTH = re.compile(r'"port": (\d+), "event": "health_server_started"')


@dataclass(frozen=True)
class Cost:
    """The cost of an operation at one size."""

    operation: str
    messages: int
    seconds: Sequence[float]
    """Seconds of each call."""
    things: int = 1
    """Number of messages or the like that one call handles."""

    @property
    def each(self) -> float:
        """Median seconds per thing."""
        return quantile(self.seconds, 0.5) / self.things


async def run(form: Form, directory: Path) -> None:
    sizes = sorted(form.messages) or (SHORT_SIZES if form.short else SIZES)
    costs: list[Cost] = []
    memory = []
    for size in sizes:
        deployment = Deployment((form.keep or directory) / str(size), SHORT_MORE if form.short else MORE_CONVERSATIONS)
        costs += await deployment.costs(size)
        memory.append({"": f"{size:,} messages", **deployment.memory})
    costs.sort(key=lambda cost: (cost.operation, cost.messages))
    smallest = {cost.operation: cost for cost in reversed(costs)}
    show(
        "sizes: the embedded default, without an LLM, one user",
        [row(cost, smallest[cost.operation]) for cost in costs],
        f"p50, p99: {CALLS} calls one after the other, the workers stopped. What has a duration was done once;",
        "“archive” and “summarize” are CPU time of the worker for the conversations that were added.",
    )
    show("sizes: memory of all processes of `afterword dev`", memory)


def row(cost: Cost, smallest: Cost) -> dict[str, str]:
    figures = dict.fromkeys(("", "in all", "each", "p50", "p99", "to the smallest"), "")
    figures[""] = f"{cost.operation}, {cost.messages:,} messages"
    if len(cost.seconds) == 1:
        figures["in all"] = f"{cost.seconds[0]:,.1f} s"
        if cost.things > 1:
            figures["each"] = f"{cost.each * 1e6:,.0f} µs"
    else:
        figures |= percentiles(cost.seconds)
    if cost is not smallest:
        figures["to the smallest"] = ratio(cost.each / smallest.each)
    return figures


@dataclass
class Filled:
    """The progress of filling a directory, recorded in a file in it."""

    conversations: int = 0
    """Number of conversations, numbered from 0."""
    is_done: bool = False
    """True if all of them are summarized and archived."""

    def keep(self, directory: Path) -> None:
        (directory / NOTE).write_text(json.dumps(vars(self)))


class Deployment:
    """A directory with the data of an embedded deployment."""

    def __init__(self, directory: Path, more: int) -> None:
        """Each measurement adds `more` conversations."""
        directory.mkdir(parents=True, exist_ok=True)
        note = directory / NOTE
        self._directory, self._more = directory, more
        self._filled = Filled(**json.loads(note.read_text())) if note.exists() else Filled()
        self.memory: dict[str, str] = {}

    async def costs(self, size: int) -> list[Cost]:
        costs = await self._fill(size)
        costs += await self._dev(size)
        async with self._running() as (stack, settings):
            costs += await self._add(stack, settings, size)
            costs.append(await self._audit(settings, size))
            costs += await self._read(settings, size)
        return costs

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[tuple[EmbeddedStack, Settings]]:
        async with EmbeddedStack(self._directory) as stack:
            yield (
                stack,
                load_settings(  # with as many partitions as `afterword dev` has
                    kafka={"bootstrap_servers": stack.bootstrap_servers},
                    sqlite={"path": stack.sqlite_path},
                    state_dir=stack.directory / "state",
                ),
            )

    async def _fill(self, size: int) -> list[Cost]:
        """Send and process this many messages, continuing an interrupted run."""
        if self._filled.is_done:
            return []
        is_new, conversations = not self._filled.conversations, size // CONVERSATION_MESSAGES
        async with self._running() as (stack, settings), AsyncExitStack() as workers:
            await ensure_topics(settings)
            for role in ALWAYS_RUN:
                await workers.enter_async_context(worker(role, self._directory, stack.environment()))
            began = time.monotonic()
            while self._filled.conversations < conversations:
                await self._send(settings, min(SENT_AT_A_TIME, conversations - self._filled.conversations))
            await until_done(settings, ALWAYS_RUN)
            seconds = time.monotonic() - began
        self._filled.is_done = True
        self._filled.keep(self._directory)
        return [Cost("whole path", size, [seconds], size)] if is_new else []

    async def _send(self, settings: Settings, count: int) -> None:
        """Send the next conversations, and record them."""
        first = self._filled.conversations
        async with Producer.from_settings(settings) as producer:
            for message in messages(range(first, first + count)):
                await producer.enqueue(message)
            await producer.drain()
        self._filled.conversations += count
        self._filled.keep(self._directory)

    async def _dev(self, size: int) -> list[Cost]:
        """Start `afterword dev`, and add conversations."""
        logs = self._directory / "logs"
        for log in logs.glob("*.log"):
            log.unlink()
        command = [sys.executable, "-m", "afterword", "dev", "--data-dir", str(self._directory)]
        began = time.monotonic()
        process = Process("dev", command, logs / "dev.log")
        try:
            await until_told(process, process.log, "page ")
            named = time.monotonic() - began
            port = await until_told(process, logs / f"{ALL}.log", HEALTH)
            await Running(process, int(port)).until_ready()
            ready = time.monotonic() - began
            idle = family_bytes(process.pid)
            settings = load_settings(**tomllib.loads((self._directory / CONFIG_FILE).read_text()))
            most = await most_bytes(process.pid, self._add_through_all(settings))
        finally:
            await asyncio.to_thread(process.stop, STOP_SECONDS)
        self.memory = {"idle": megabytes(idle), "most": megabytes(max(idle, most))}
        return [
            Cost("`afterword dev` until it names its page", size, [named]),
            Cost("`afterword dev` until all workers are ready", size, [ready]),
        ]

    async def _add_through_all(self, settings: Settings) -> None:
        await self._send(settings, self._more)
        await until_done(settings, ALWAYS_RUN)

    async def _add(self, stack: EmbeddedStack, settings: Settings, size: int) -> list[Cost]:
        """Add conversations: archive them, then summarize them, each with only its own worker running."""
        count, environment = self._more * CONVERSATION_MESSAGES, stack.environment()
        async with worker("archiver", self._directory, environment) as archiver:
            before = cpu_seconds(archiver.pid)
            await self._send(settings, self._more)
            await until_done(settings, ["archiver"])
            archived = cpu_seconds(archiver.pid) - before
        async with worker("summarizer", self._directory, environment) as summarizer:
            before = cpu_seconds(summarizer.pid)
            async with worker("segmenter", self._directory, environment):
                await until_done(settings, ["segmenter", "summarizer"])
                summarized = cpu_seconds(summarizer.pid) - before
        return [
            Cost("archive, a message", size, [archived], count),
            Cost("summarize, an episode", size, [summarized], count // EPISODE_MESSAGES),
        ]

    async def _audit(self, settings: Settings, size: int) -> Cost:
        """Audit the directory. Raises: RuntimeError unless it is clean and complete."""
        began, there = time.monotonic(), self._filled.conversations * CONVERSATION_MESSAGES
        report = await audit.run(settings)
        seconds = time.monotonic() - began
        if not report.clean or report.episodes["total"] != there // EPISODE_MESSAGES:
            raise RuntimeError("\n".join(report.lines()))
        return Cost("audit, a message", size, [seconds], there)

    async def _read(self, settings: Settings, size: int) -> list[Cost]:
        """Measure `context` and `recall` on random conversations."""
        chance = Random(SEED)
        count = CALLS + WARMING_CALLS
        names = [name_of(chance.randrange(size // CONVERSATION_MESSAGES)) for _ in range(count)]
        long = [text for text in turn_texts() if len(text.split()) >= LEAST_WORDS]
        questions = [chance.choice(long) for _ in range(count)]
        async with Memory.from_settings(settings) as memory:
            return [
                Cost("context", size, await timed(memory.context, names)),
                Cost("episodes", size, await timed(memory.episodes, names)),
                Cost(
                    "recall",
                    size,
                    await timed(lambda text: memory.recall(text, user_id=USER, tenant_id=None), questions),
                ),
            ]


async def timed(ask: Callable[[str], Awaitable[object]], what: Iterable[str]) -> list[float]:
    """Return the seconds of each call but the first ones.

    Raises: RuntimeError if nothing is found, which would be fast.
    """
    seconds = []
    for one in what:
        began = time.monotonic()
        if not await ask(one):
            raise RuntimeError(f"nothing was found for {one!r}")
        seconds.append(time.monotonic() - began)
    return seconds[WARMING_CALLS:]


async def until_done(settings: Settings, roles: Collection[str]) -> None:
    """Wait until these workers have processed everything. Raises: TimeoutError."""
    for role, inputs in inputs_of(settings.kafka).items():  # the summarizer reads what the segmenter writes
        if role in roles:
            await until_consumed(settings.kafka, *inputs, FILL_SECONDS)


async def until_told(process: Process, log: Path, what: str | re.Pattern[str]) -> str:
    """Wait until a log matches the pattern, and return the match or its first group. Raises: TimeoutError,
    ProcessExited.
    """
    pattern = re.compile(what)
    async with asyncio.timeout(START_SECONDS):
        while not (found := pattern.search(text_of(log))):
            process.check()
            await asyncio.sleep(0.05)
        return found[pattern.groups and 1]


def text_of(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


async def most_bytes(pid: int, work: Awaitable[None]) -> int:
    """Return the most memory that a process and its descendants use until the work is done."""
    working, most = asyncio.ensure_future(work), 0
    while not working.done():
        most = max(most, await asyncio.to_thread(family_bytes, pid))
        await asyncio.wait([working], timeout=SAMPLE_SECONDS)
    await working
    return most


def messages(conversations: range) -> Iterator[MessageCreated]:
    """Yield the messages of these conversations, AT_A_TIME of them in turn."""
    texts, chance = turn_texts(), Random(SEED + conversations.start)
    for first in range(conversations.start, conversations.stop, AT_A_TIME):
        for number in range(CONVERSATION_MESSAGES):
            for conversation in range(first, min(first + AT_A_TIME, conversations.stop)):
                yield MessageCreated(
                    id=f"m{number}",
                    conversation_id=name_of(conversation),
                    user_id=USER,
                    role="assistant" if number % 2 else "user",
                    content=chance.choice(texts),
                )


def name_of(conversation: int) -> str:
    return f"c{conversation}"
