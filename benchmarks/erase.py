"""Erasing a person on a whole deployment: seconds, and the memory of the eraser.

python -m benchmarks.erase [MESSAGES] [CONVERSATIONS]

Embedded servers, one worker of each role, no LLM. The user is alone in each conversation, and all is summarized before.
"""

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from afterword import Eraser, MessageCreated, Producer, audit
from afterword.embedded import EmbeddedStack
from afterword.streams.settings import Settings, load_settings
from afterword.topics import ensure_topics
from benchmarks.processes import worker

USER, TENANT = "ann", "acme"
ROLES = ("segmenter", "summarizer", "archiver")
WAIT_SECONDS = 3600.0


async def fill(settings: Settings, messages: int, conversations: int) -> None:
    """Send the messages, and wait until they are summarized."""
    async with Producer.from_settings(settings) as producer:
        for number in range(messages):
            await producer.enqueue(
                MessageCreated(
                    id=f"m{number}",
                    conversation_id=f"c{number % conversations}",
                    user_id=USER,
                    tenant_id=TENANT,
                    role="user",
                    content=f"Line {number}: the flight to Rome is on Monday, the hotel is for three nights.",
                )
            )
        await producer.drain()
        for number in range(conversations):
            await producer.flush(f"c{number}", tenant_id=TENANT)
    report = await audit.run(settings, wait_seconds=WAIT_SECONDS)
    if not report.clean:
        sys.exit("\n".join(report.lines()))


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def run(messages: int, conversations: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        async with EmbeddedStack(Path(name) / "stack") as stack, AsyncExitStack() as workers:
            settings = load_settings(
                kafka={"bootstrap_servers": stack.bootstrap_servers},
                mongo={"uri": stack.mongo_uri},
                qdrant={"path": stack.qdrant_path},
            )
            await ensure_topics(settings)
            for role in ROLES:
                await workers.enter_async_context(worker(role, Path(name), stack.environment()))
            await fill(settings, messages, conversations)
            before, began = peak_bytes(), time.monotonic()
            async with Eraser.from_settings(settings) as eraser:
                receipt = await eraser.erase(USER, TENANT, timeout_seconds=WAIT_SECONDS)
            seconds, more = time.monotonic() - began, peak_bytes() - before
    print(f"{receipt.counts['messages']:,} messages in {receipt.counts['conversations']:,} conversations")
    print(f"{seconds:.1f} s, peak memory of the eraser {more / 2**20:.0f} MB above that before")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("messages", type=int, nargs="?", default=100_000)
    parser.add_argument("conversations", type=int, nargs="?", default=1_000)
    given = parser.parse_args()
    asyncio.run(run(given.messages, given.conversations))
