"""Memory of a summarizer over thousands of episodes: it may rise while caches fill, and then no more."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import httpx

from afterword.embedded import EmbeddedStack
from afterword.embedded.claims import HOST
from afterword.streams.settings import load_settings
from afterword.topics import ensure_topics
from benchmarks import topics
from benchmarks.closed import closed_episodes
from benchmarks.llm import StandIn
from benchmarks.processes import Worker, worker
from benchmarks.suite import Finding, Form, Line
from benchmarks.summarizer import CLOSED, PARTITIONS, SLOTS

CONVERSATIONS = 200
LOOKS = (500, 2_000, 4_000)
"""Episodes after which the memory is read."""
AIM_BYTES = 200_000_000
POLL_SECONDS = 0.2
DONE = re.compile(r"^afterword_summaries_total\{.*\} (\S+)$", re.MULTILINE)


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    looks = LOOKS[:2] if form.short else LOOKS
    async with EmbeddedStack(directory / "stack") as stack, StandIn() as llm:
        settings = {"bootstrap_servers": stack.bootstrap_servers, "partitions": PARTITIONS}
        await ensure_topics(load_settings(kafka={**settings, "episodes_topic": "unused"}))
        each = -(-looks[-1] // CONVERSATIONS)
        await topics.fill(stack.bootstrap_servers, CLOSED, PARTITIONS, closed_episodes(range(CONVERSATIONS), each))
        await topics.create(stack.bootstrap_servers, [f"{CLOSED}.dlq"], PARTITIONS)
        async with worker("summarizer", directory, {**stack.environment(), **llm.environment(SLOTS)}) as summarizer:
            await summarizer.until_ready()
            lines = [await look(summarizer, episodes) for episodes in looks]
    title = f"a summarizer's memory, LLM over HTTP, {SLOTS} slots, an index in a directory, a backlog"
    return [Finding(title, lines, ["RSS: resident memory; its own: without mapped files, which are its libraries."])]


async def look(summarizer: Worker, episodes: int) -> Line:
    async with httpx.AsyncClient(trust_env=False) as client:
        while await announced(client, summarizer) < episodes:
            summarizer.process.check()
            await asyncio.sleep(POLL_SECONDS)
    resident, own = (summarizer.memory_bytes(name) for name in ("VmRSS", "RssAnon"))
    figures = {"RSS": f"{resident / 1e6:.0f} MB", "its own": f"{own / 1e6:.0f} MB"}
    return Line(f"{episodes:,} episodes", figures, None, f"≤ {AIM_BYTES / 1e6:.0f} MB", resident <= AIM_BYTES)


async def announced(client: httpx.AsyncClient, summarizer: Worker) -> float:
    text = (await client.get(f"http://{HOST}:{summarizer.port}/metrics")).text
    return sum(map(float, DONE.findall(text)))
