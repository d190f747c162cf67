"""The embedded default with more and more messages: what an operation costs, and to that of the smallest size.

Conversations of twenty messages, two episodes each, all of one user: turns of SuperDialseg's dialogues in random order.
The workers put them through the whole path, without an LLM, each size on a stack of its own; then they stop, and this
process reads alone.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

from afterword import Memory, MessageCreated, Producer, audit
from afterword.audit.log import open_log
from afterword.audit.waiting import is_consumed
from afterword.dev import ROLES
from afterword.dialogues import expand
from afterword.embedded import EmbeddedStack
from afterword.streams.settings import Settings, load_settings
from afterword.topics import ensure_topics
from benchmarks.processes import worker
from benchmarks.quantiles import quantile
from benchmarks.recall.corpora import LEAST_WORDS, dialogue_rows
from benchmarks.suite import Finding, Form, Line

SIZES = (10_000, 100_000)
"""Messages; others are given with `--messages`."""
CONVERSATION_MESSAGES, EPISODE_MESSAGES = 20, 10
AT_A_TIME = 100
"""Conversations that go on side by side."""
USER = "u1"
CALLS, WARMING_CALLS = 200, 10
FILL_SECONDS = 7200.0
POLL_SECONDS = 0.2
SEED = 16
FLAT = 2.0
"""An operation's cost to that of the smallest size, at most."""
CONTEXT_SECONDS = (0.010, 0.040)
"""Aims of p50 and p99."""
RECALL_SECONDS = {100_000: 0.020, 1_000_000: 0.040}
"""Aims of p50, up to so many messages."""
AUDIT_SECONDS, AUDIT_MESSAGES = 10.0, 100_000
WHOLE_PATH, CONTEXT, EPISODES, RECALL, AUDIT = "whole path", "context", "episodes", "recall", "audit"


@dataclass(frozen=True)
class Measured:
    """One operation at one size."""

    operation: str
    messages: int
    seconds: Sequence[float]
    """Duration of each call."""
    per_message: bool = False
    """A call goes through all messages: its cost is that of one of them."""

    @property
    def cost(self) -> float:
        """Seconds: the median of a call, or of a message in it."""
        return quantile(self.seconds, 0.5) / (self.messages if self.per_message else 1)


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    """Measure in the long form only: filling takes minutes."""
    sizes = sorted(form.messages) or ([] if form.short else SIZES)
    turns = [message.content for row in dialogue_rows() for message in expand(row["id"], row["dialogue"])]
    found = [one for size in sizes for one in await measured(size, directory / f"stack-{size}", turns)]
    return [finding(found)] if found else []


async def measured(size: int, directory: Path, turns: Sequence[str]) -> list[Measured]:
    async with EmbeddedStack(directory) as stack:
        settings = load_settings(
            kafka={"bootstrap_servers": stack.bootstrap_servers},
            mongo={"uri": stack.mongo_uri},
            qdrant={"path": stack.qdrant_path},
            state_dir=stack.state_directory,
        )
        filled = await fill(settings, stack, size, turns)
        began = time.monotonic()
        report = await audit.run(settings)
        audited = time.monotonic() - began
        if not report.clean or report.episodes["total"] != size // EPISODE_MESSAGES:
            raise RuntimeError("\n".join(report.lines()))
        return [
            Measured(WHOLE_PATH, size, [filled], per_message=True),
            *await read(settings, size, turns),
            Measured(AUDIT, size, [audited], per_message=True),
        ]


async def fill(settings: Settings, stack: EmbeddedStack, size: int, turns: Sequence[str]) -> float:
    """Return the seconds from the first message until all are summarized and archived. Raises: TimeoutError."""
    await ensure_topics(settings)
    async with AsyncExitStack() as running:
        for role in ROLES:
            one = await running.enter_async_context(worker(role, stack.directory.parent, stack.environment()))
            await one.until_ready()
        began = time.monotonic()
        async with Producer.from_settings(settings) as producer:
            for message in said(size, turns):
                await producer.enqueue(message)
            await producer.drain()
        kafka = settings.kafka
        groups = (kafka.segmenter_id, kafka.messages_topic), (kafka.archiver_id, kafka.messages_topic)
        async with asyncio.timeout(FILL_SECONDS), open_log(kafka) as log:
            # the last one reads what the first one writes
            for group, topic in (*groups, (kafka.summarizer_id, kafka.episodes_topic)):
                its = kafka.model_copy(update={"segmenter_id": group, "messages_topic": topic})
                while not await is_consumed(log, its):  # noqa: ASYNC110 – offsets set no event
                    await asyncio.sleep(POLL_SECONDS)
        return time.monotonic() - began


def said(size: int, turns: Sequence[str]) -> Iterator[MessageCreated]:
    """All messages, a block of conversations after the other, those of a block in turn."""
    chance, conversations = Random(SEED), size // CONVERSATION_MESSAGES
    for first in range(0, conversations, AT_A_TIME):
        for number in range(CONVERSATION_MESSAGES):
            for conversation in range(first, min(first + AT_A_TIME, conversations)):
                yield MessageCreated(
                    id=f"m{number}",
                    conversation_id=name_of(conversation),
                    user_id=USER,
                    role="user" if number % 2 == 0 else "assistant",
                    content=chance.choice(turns),
                )


def name_of(conversation: int) -> str:
    return f"c{conversation}"


async def read(settings: Settings, size: int, turns: Sequence[str]) -> list[Measured]:
    """Read conversations at random, and ask what has been said."""
    chance = Random(SEED)
    names = [name_of(chance.randrange(size // CONVERSATION_MESSAGES)) for _ in range(CALLS + WARMING_CALLS)]
    questions = chance.choices([turn for turn in turns if len(turn.split()) >= LEAST_WORDS], k=len(names))
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


def finding(found: Sequence[Measured]) -> Finding:
    smallest = {one.operation: one for one in sorted(found, key=lambda one: one.messages, reverse=True)}
    lines = [line(one, smallest[one.operation]) for one in sorted(found, key=lambda one: (one.operation, one.messages))]
    notes = [
        f"{CALLS} calls one after the other, the workers stopped. “Whole path” and audit are one run each.",
        "A ratio is the cost at the smallest size to the cost here.",
    ]
    return Finding("sizes: the embedded default, without an LLM, one user", lines, notes)


def line(one: Measured, smallest: Measured) -> Line:
    if one.per_message:
        figures = {"in all": f"{one.seconds[0]:,.1f} s", "each": f"{one.cost * 1e6:,.0f} µs"}
    else:
        figures = {f"p{share * 100:.0f}": f"{quantile(one.seconds, share) * 1000:,.1f} ms" for share in (0.5, 0.99)}
    bounds = dict(aims(one))
    ratio = None
    if one is not smallest:
        ratio = smallest.cost / one.cost
        bounds[f"≤ {FLAT:g} × the smallest's"] = one.cost <= FLAT * smallest.cost
    name = f"{one.operation}, {one.messages:,} messages"
    return Line(name, figures, ratio, ", ".join(bounds), all(bounds.values()) if bounds else None)


def aims(one: Measured) -> Iterator[tuple[str, bool]]:
    """Aims of its own, and whether each is met."""
    if one.operation == CONTEXT:
        for share, most in zip((0.5, 0.99), CONTEXT_SECONDS, strict=True):
            yield f"p{share * 100:.0f} ≤ {most * 1000:.0f} ms", quantile(one.seconds, share) <= most
    if one.operation == RECALL:
        for most in (seconds for size, seconds in RECALL_SECONDS.items() if one.messages <= size):
            yield f"p50 ≤ {most * 1000:.0f} ms", quantile(one.seconds, 0.5) <= most
            return
    if one.operation == AUDIT and one.messages <= AUDIT_MESSAGES:
        yield f"≤ {AUDIT_SECONDS:.0f} s", one.seconds[0] <= AUDIT_SECONDS
