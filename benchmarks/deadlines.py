"""Lateness with which the silence of a conversation is noticed while very many others are open."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.deployment import Deployment
from benchmarks.processes import Worker
from benchmarks.state import message
from benchmarks.suite import Finding, Line

IDLE_SECONDS = 10
SETTINGS = {"episodes": {"idle_seconds": IDLE_SECONDS}}
STEADY, STEADY_SECONDS = 1000, 15
"""Conversations that fall silent in each second, and for how long that goes on."""
BURST = 20_000
"""Conversations that fall silent at once."""
WAIT_SECONDS = 120.0
AIM_SECONDS = 2.0
AIM_BYTES = 200_000_000


@dataclass(frozen=True)
class Silence:
    """Conversations that said one thing: seconds from the deadline until the episode could be read.

    The deadline is taken to be `IDLE_SECONDS` after the message was given to the producer, so what the message took on
    its way is counted as lateness too.
    """

    name: str
    late_seconds: Sequence[float]

    def quantile(self, part: float) -> float:
        ordered = sorted(self.late_seconds)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


@dataclass(frozen=True)
class Lateness:
    silences: Sequence[Silence]
    memory_bytes: int
    """Resident, at the end."""
    own_bytes: int
    """Memory without mapped files."""
    peak_bytes: int


async def look(deployed: Deployment, segmenter: Worker) -> Lateness:
    """The worker is ready, with all its open conversations."""
    async with asyncio.timeout(WAIT_SECONDS):
        steady = await silence(deployed, f"{STEADY:,} a second", STEADY * STEADY_SECONDS, STEADY)
        burst = await silence(deployed, f"{BURST:,} at once", BURST, BURST)
    return Lateness([steady, burst], *[segmenter.memory_bytes(name) for name in ("VmRSS", "RssAnon", "VmHWM")])


async def silence(deployed: Deployment, name: str, count: int, rate: int) -> Silence:
    """`count` new conversations, `rate` a second, each with one message."""
    kafka, servers = deployed.settings.kafka, deployed.stack.bootstrap_servers
    consumer = AIOKafkaConsumer(
        kafka.episodes_topic, bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="latest"
    )
    async with consumer, AIOKafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=5) as producer:
        await consumer.seek_to_end()
        reading = asyncio.create_task(arrivals(consumer, count))
        said = await say(producer, kafka.messages_topic, [f"{name}-{number:08}" for number in range(count)], rate)
        seen = await reading
    return Silence(name, lateness(said, seen))


async def say(producer: Any, topic: str, conversations: Iterable[str], rate: int) -> dict[str, float]:
    """Send one message of each, and return the times in seconds of the monotonic clock."""
    said, began = {}, time.monotonic()
    for number, conversation in enumerate(conversations):
        ahead = began + number / rate - time.monotonic()
        if rate < BURST and ahead > 0:
            await asyncio.sleep(ahead)
        key, value = message(conversation, f"m-{number:08}", 0)
        await producer.send(topic, value, key=key)
        said[conversation] = time.monotonic()
    await producer.flush()
    return said


async def arrivals(consumer: Any, count: int) -> dict[str, float]:
    """Times when the episode of each could be read."""
    seen: dict[str, float] = {}
    while len(seen) < count:
        for records in (await consumer.getmany(timeout_ms=200)).values():
            now = time.monotonic()
            seen.update((record.key.decode(), now) for record in records)
    return seen


def lateness(said: Mapping[str, float], seen: Mapping[str, float]) -> list[float]:
    return [seen[conversation] - moment - IDLE_SECONDS for conversation, moment in said.items()]


def finding(conversations: int, found: Lateness) -> Finding:
    title = f"idle deadlines: {conversations:,} open conversations, others fall silent"
    notes = [
        f"late: from {IDLE_SECONDS} s after its only message was produced until its episode could be read.",
        "`at once` has no aim: how late the last one is, is how fast a worker writes episodes.",
    ]
    return Finding(title, [line(one, found) for one in found.silences], notes)


def line(silence: Silence, found: Lateness) -> Line:
    most = max(silence.late_seconds)
    figures = {
        "late, p50": f"{silence.quantile(0.5):.2f} s",
        "p99": f"{silence.quantile(0.99):.2f} s",
        "most": f"{most:.2f} s",
        "RSS": f"{found.memory_bytes / 1e6:.0f} MB",
        "its own": f"{found.own_bytes / 1e6:.0f} MB",
        "most RSS": f"{found.peak_bytes / 1e6:.0f} MB",
    }
    if "at once" in silence.name:
        return Line(silence.name, figures)
    met = most < AIM_SECONDS and found.memory_bytes < AIM_BYTES
    return Line(silence.name, figures, None, f"< {AIM_SECONDS:.0f} s, < {AIM_BYTES / 1e6:.0f} MB", met)
