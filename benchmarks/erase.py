"""Erasing a person on a whole deployment: seconds, processor time and memory, and the latency of others meanwhile.

python -m benchmarks.erase [MESSAGES] [CONVERSATIONS] [--shared]

Embedded servers, one worker of each role, no LLM. All is summarized before. The user is alone in each conversation;
with `--shared` somebody else has said one more message in each, so that the user's are deleted one by one.
`afterword erase` runs as a process of its own. Others talk before and during: an episode of two messages, flushed, now
and then; the latency is from its flush to its `summary.created`.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import orjson
from aiokafka import AIOKafkaConsumer

from afterword import MessageCreated, Producer, audit
from afterword.embedded import EmbeddedStack
from afterword.streams.settings import Settings, load_settings
from afterword.topics import ensure_topics
from benchmarks.processes import Worker, status_bytes, worker
from benchmarks.quantiles import milliseconds, quantile

USER, TENANT = "ann", "acme"
ROLES = ("segmenter", "summarizer", "archiver")
WAIT_SECONDS = 3600.0
BEFORE_SECONDS = 30.0
"""Time that others talk before the erasure."""
EPISODES_A_SECOND = 5.0
SETTLING_SECONDS = 120.0
SAMPLE_SECONDS = 0.2


async def fill(settings: Settings, messages: int, conversations: int, *, shared: bool) -> None:
    """Send the messages, and wait until they are summarized."""
    async with Producer.from_settings(settings) as producer:
        for number in range(conversations if shared else 0):
            await producer.enqueue(said(f"c{number}", messages + number, "bob"))
        for number in range(messages):
            await producer.enqueue(said(f"c{number % conversations}", number, USER))
        await producer.drain()
        for number in range(conversations):
            await producer.flush(f"c{number}", tenant_id=TENANT)
    report = await audit.run(settings, wait_seconds=WAIT_SECONDS)
    if not report.clean:
        sys.exit("\n".join(report.lines()))


def said(conversation: str, number: int, user: str) -> MessageCreated:
    return MessageCreated(
        id=f"m{number}",
        conversation_id=conversation,
        user_id=user,
        tenant_id=TENANT,
        role="user",
        content=f"Line {number}: the flight to Rome is on Monday, the hotel is for three nights.",
    )


class Others:
    """Live traffic of other people, each conversation an episode."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting: dict[str, float] = {}
        self._arrived = asyncio.Event()
        self.seconds: list[float] = []
        """Latencies since it was last emptied."""

    @asynccontextmanager
    async def talking(self) -> AsyncIterator[None]:
        kafka = self._settings.kafka
        async with (
            Producer.from_settings(self._settings) as producer,
            AIOKafkaConsumer(
                kafka.summaries_topic, bootstrap_servers=kafka.bootstrap_servers, isolation_level="read_committed"
            ) as consumer,
        ):
            tasks = [asyncio.create_task(self._talk(producer)), asyncio.create_task(self._listen(consumer))]
            try:
                yield
                tasks[0].cancel()
                async with asyncio.timeout(SETTLING_SECONDS):
                    while self._waiting:
                        self._arrived.clear()
                        await self._arrived.wait()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    async def _talk(self, producer: Producer) -> None:
        chance, number = random.Random(1), 0
        while True:
            name, number = f"o{number}", number + 1
            for line in range(2):
                await producer.send(said(name, line, "bob"))
            self._waiting[name] = time.monotonic()
            await producer.flush(name, tenant_id=TENANT)
            await asyncio.sleep(chance.expovariate(EPISODES_A_SECOND))

    async def _listen(self, consumer: AIOKafkaConsumer) -> None:
        async for record in consumer:
            began = self._waiting.pop(orjson.loads(record.value)["conversation_id"], None)
            if began is not None:
                self.seconds.append(time.monotonic() - began)
                self._arrived.set()

    def latencies(self) -> str:
        """Quantiles since the last call."""
        seconds, self.seconds = self.seconds, []
        p50, p99 = (milliseconds(quantile(seconds, share)) for share in (0.5, 0.99))
        return f"p50 {p50}, p99 {p99} of {len(seconds):,} episodes"


def erase(environment: Mapping[str, str], receipt: Path) -> tuple[float, float, int]:
    """Run `afterword erase`; return its seconds, seconds of processor time and peak bytes. Raises: RuntimeError."""
    arguments = ("erase", "--user", USER, "--tenant", TENANT, "--yes", "--timeout", f"{WAIT_SECONDS:g}")
    began = time.monotonic()
    command = [sys.executable, "-m", "afterword", *arguments, "--receipt", str(receipt)]
    process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    status, peak = Path(f"/proc/{process.pid}/status"), 0
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        if "VmHWM" in (text := status.read_text()):  # not that of a process that has just ended
            peak = status_bytes(text, "VmHWM")  # ru_maxrss has what the parent had when it forked
        time.sleep(SAMPLE_SECONDS)
    if ended[1]:
        raise RuntimeError(f"afterword erase ended with {ended[1]}")
    return time.monotonic() - began, ended[2].ru_utime + ended[2].ru_stime, peak


async def run(messages: int, conversations: int, *, shared: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        async with EmbeddedStack(Path(name) / "stack") as stack, AsyncExitStack() as entered:
            settings = load_settings(
                kafka={"bootstrap_servers": stack.bootstrap_servers},
                mongo={"uri": stack.mongo_uri},
                qdrant={"path": stack.qdrant_path},
            )
            await ensure_topics(settings)
            environment = stack.environment()
            workers: dict[str, Worker] = {
                role: await entered.enter_async_context(worker(role, Path(name), environment)) for role in ROLES
            }
            began = time.monotonic()
            await fill(settings, messages, conversations, shared=shared)
            tell(f"filled in {time.monotonic() - began:.0f} s")
            others = Others(settings)
            async with others.talking():
                await asyncio.sleep(BEFORE_SECONDS)
                tell(f"others before: {others.latencies()}")
                before = {role: (one.cpu_seconds, one.memory_bytes()) for role, one in workers.items()}
                seconds, own, peak = await asyncio.to_thread(erase, environment, Path(name) / "receipt.json")
                tell(f"others during: {others.latencies()}")
                after = {role: (one.cpu_seconds, one.memory_bytes("VmHWM")) for role, one in workers.items()}
    alone = "among others" if shared else "alone"
    tell(f"{messages:,} messages in {conversations:,} conversations, {alone}: {seconds:.1f} s")
    tell(f"eraser: {own:.1f} s of processor time, peak {peak / 2**20:.0f} MB")
    for role, (spent, memory) in before.items():
        then, most = after[role]
        tell(
            f"{role}: {then - spent:.1f} s of processor time, others' included; "
            f"{memory / 2**20:.0f} MB before, peak {most / 2**20:.0f} MB"
        )


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("messages", type=int, nargs="?", default=100_000)
    parser.add_argument("conversations", type=int, nargs="?", default=1_000)
    parser.add_argument("--shared", action="store_true", help="somebody else has said something in each conversation")
    given = parser.parse_args()
    asyncio.run(run(given.messages, given.conversations, shared=given.shared))
