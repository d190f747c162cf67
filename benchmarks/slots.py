"""The LLM's slots: whether they are busy while episodes are queued, and whether a slow conversation delays others.

The summarizer is the real worker on the real stores. One call takes 0.5 to 1.5 s, in every twentieth conversation 10 s.
"""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path

from aiokafka import AIOKafkaProducer

from afterword.embedded import EmbeddedStack
from afterword.streams.settings import Settings, load_settings
from afterword.topics import ensure_topics
from benchmarks.closed import closed_episodes
from benchmarks.llm import Span, StandIn, name_of
from benchmarks.processes import Worker, worker
from benchmarks.quantiles import milliseconds, quantile
from benchmarks.schedule import busy_share, calls_of, ideal, last_start
from benchmarks.suite import Finding, Form, Line

PARTITIONS = 4
EPISODES = {8: 80, 32: 320, 128: 1280}
"""Slots: episodes, half as many conversations with two each."""
EACH = 2
SLOW_EVERY = 20
SLOW_SECONDS = 10.0
QUICK_SECONDS = 0.5, 1.5
AIM = 0.95
FEW_SLOTS = 8
OTHERS = 24
"""Conversations beside the slow one, with two episodes each."""
SLOW_EPISODES = 3
OTHERS_PER_SECOND = 4.0
"""Half of what the few slots can do."""
TIMEOUT_SECONDS = 120.0
WARMING_NUMBERS = range(10_001, 10_009)
WARMING = {name_of(number) for number in WARMING_NUMBERS}
"""Conversations that a new worker summarizes first, which loads what it needs."""


class Pace:
    """Duration of the answers of each conversation."""

    def __init__(self, slow_every: int = SLOW_EVERY) -> None:
        self._chance = random.Random(1)
        self._slow_every = slow_every

    def __call__(self, conversation: str) -> float:
        if conversation in WARMING:
            return 0.0
        return SLOW_SECONDS if self.is_slow(conversation) else self._chance.uniform(*QUICK_SECONDS)

    def is_slow(self, conversation: str) -> bool:
        return int(conversation.rpartition("-")[2]) % self._slow_every == 0


@asynccontextmanager
async def summarizer(
    stack: EmbeddedStack, llm: StandIn, directory: Path, slots: int, name: str
) -> AsyncIterator[tuple[Settings, Worker]]:
    """Summarizer with topics and stores of its own, once it is ready."""
    topic = f"closed-{name}"
    kafka = {"bootstrap_servers": stack.bootstrap_servers, "partitions": PARTITIONS, "episodes_topic": topic}
    settings = load_settings(kafka=kafka)
    await ensure_topics(settings)
    environment = {
        **stack.environment(),
        **llm.environment(slots),
        "AFTERWORD_KAFKA__EPISODES_TOPIC": topic,
        "AFTERWORD_KAFKA__SUMMARIZER_ID": f"summarizer-{name}",
        "AFTERWORD_MONGO__DATABASE": f"slots-{name}",
        "AFTERWORD_QDRANT__PATH": str(directory / f"qdrant-{name}"),
    }
    async with worker("summarizer", directory, environment) as process:
        await process.until_ready()
        await send(settings, list(closed_episodes(WARMING_NUMBERS, EACH)))
        await until_asked_of(llm, WARMING, EACH * len(WARMING))
        llm.spans.clear()
        yield settings, process


async def send(settings: Settings, episodes: Sequence[tuple[bytes, bytes]], per_second: float = 0.0) -> list[float]:
    """All at once, or at a steady rate; returns when each was sent, in seconds of the monotonic clock."""
    sent = []
    async with AIOKafkaProducer(bootstrap_servers=settings.kafka.bootstrap_servers, acks="all") as producer:
        for key, value in episodes:
            sent.append(time.monotonic())
            await producer.send(settings.kafka.episodes_topic, value, key=key)
            if per_second:
                await asyncio.sleep(1 / per_second)
    return sent


async def filled(stack: EmbeddedStack, directory: Path, slots: int) -> tuple[list[Span], Pace, float]:
    """The calls of a backlog, and the CPU seconds that each episode took."""
    count, pace = EPISODES[slots], Pace()
    episodes = list(closed_episodes(range(1, count // EACH + 1), EACH))
    async with (
        StandIn(pace) as llm,
        summarizer(stack, llm, directory, slots, f"of-{slots}") as (settings, process),
    ):
        before = process.cpu_seconds
        await send(settings, episodes)
        await until_asked_of(llm, {key.decode() for key, _ in episodes}, count)
        return llm.spans, pace, (process.cpu_seconds - before) / count


def filled_line(slots: int, spans: Sequence[Span], pace: Pace, cpu_seconds: float) -> Line:
    slow = {span.conversation for span in spans if pace.is_slow(span.conversation)}
    best = ideal(calls_of(spans), slots)
    busy = busy_share(spans, slots, last_start(spans, slow))
    began = min(span.began for span in spans)
    figures = {
        "episodes": str(len(spans)),
        "busy": f"{busy:.1%}",
        "ideal": f"{busy_share(best, slots, last_start(best, slow)):.1%}",
        "until the last call": f"{last_start(spans, slow) - began:.1f} s",
        "ideal of that": f"{last_start(best, slow):.1f} s",
        "CPU each": milliseconds(cpu_seconds),
    }
    return Line(f"{slots} slots", figures, None, f"≥ {AIM:.0%} busy", busy >= AIM)


async def waits_of_others(stack: EmbeddedStack, directory: Path) -> tuple[list[float], list[float]]:
    """Seconds from a quick conversation's `episode.closed` to its call, without a slow conversation and beside one."""
    pace = Pace(slow_every=2 * OTHERS + 1)
    slow = list(closed_episodes([2 * OTHERS + 1], SLOW_EPISODES))
    async with StandIn(pace) as llm, summarizer(stack, llm, directory, FEW_SLOTS, "beside") as (settings, _):
        alone = await waits_of(range(1, OTHERS + 1), settings, llm)
        await send(settings, slow)
        return alone, await waits_of(range(OTHERS + 1, 2 * OTHERS + 1), settings, llm)


async def waits_of(numbers: Sequence[int], settings: Settings, llm: StandIn) -> list[float]:
    episodes, names = list(closed_episodes(numbers, EACH)), {name_of(number) for number in numbers}
    sent = await send(settings, episodes, OTHERS_PER_SECOND)
    await until_asked_of(llm, names, len(episodes))
    return waits([(key.decode(), at) for (key, _), at in zip(episodes, sent, strict=True)], llm.spans)


async def until_asked_of(llm: StandIn, names: set[str], count: int) -> None:
    """Raises: TimeoutError."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while sum(span.conversation in names for span in llm.spans) < count:  # noqa: ASYNC110 – a list has no event
            await asyncio.sleep(0.05)


def waits(sent: Sequence[tuple[str, float]], spans: Sequence[Span]) -> list[float]:
    """Seconds from each sending to its call: the n-th call of a conversation is for its n-th episode."""
    begun: dict[str, list[float]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.began):
        begun[span.conversation].append(span.began)
    by_name = groupby(sorted(sent), key=lambda one: one[0])
    return [begun[name][at] - moment for name, ones in by_name for at, (_, moment) in enumerate(ones)]


def waits_line(program: str, found: Sequence[float]) -> Line:
    figures = {"episodes": str(len(found))}
    figures |= {f"p{share * 100:.0f}": milliseconds(quantile(found, share)) for share in (0.5, 0.9, 1.0)}
    return Line(program, figures)


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    """Measure in the long form only: slots that wait for seconds cannot be looked at in less."""
    if form.short:
        return []
    async with EmbeddedStack(directory / "stack") as stack:
        lines = [filled_line(slots, *await filled(stack, directory, slots)) for slots in EPISODES]
        alone, beside = await waits_of_others(stack, directory)
    return [
        Finding("LLM slots: calls of 1 s ± 0.5 s, of every 20th conversation 10 s; one summarizer", lines),
        Finding(
            f"from episode.closed to the LLM's call, {FEW_SLOTS} slots half used",
            [
                waits_line("no slow conversation", alone),
                waits_line(f"beside one of {SLOW_EPISODES} × {SLOW_SECONDS:.0f} s", beside),
            ],
        ),
    ]
