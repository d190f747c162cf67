"""Measures a segmenter with few and with many open conversations: its memory, and how fast it recovers lost state.

Each conversation has one pending message, which makes three changelog records. The segmenter reads all messages, its
state is deleted, and it starts again. The recovery is compared with a plain consumer that reads the same changelogs and
drops the records.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson

from afterword.embedded import EmbeddedStack
from afterword.operating.topics import ensure_topics
from afterword.streams.segmenter.state import TABLES
from afterword.streams.settings import Settings
from benchmarks.measuring import (
    PARTITIONS,
    Form,
    fill,
    megabytes,
    memory_bytes,
    ratio,
    settings_of,
    show,
    until_consumed,
    worker,
)
from benchmarks.throughput import MESSAGE_BYTES

SIZES, SHORT_SIZES = (10_000, 300_000), (2_000, 10_000)
READ_SECONDS = 600.0


async def run(form: Form, directory: Path) -> None:
    rows = []
    for size in sorted(form.messages) or (SHORT_SIZES if form.short else SIZES):
        async with EmbeddedStack(directory / str(size) / "stack") as stack:
            rows.append(await measured(stack, directory / str(size), size))
    show(
        "memory and recovery of one segmenter by open conversations",
        rows,
        "after reading: memory when all messages are read. recovered: when it is ready again without local state.",
        "ratio: records recovered in a second to those that a plain consumer reads and drops.",
    )


async def measured(stack: EmbeddedStack, directory: Path, conversations: int) -> dict[str, str]:
    settings, state = settings_of(stack), directory / "state"
    environment = {**stack.environment(), "AFTERWORD_STATE_DIR": str(state)}
    await ensure_topics(settings)
    await fill(stack.bootstrap_servers, settings.kafka.messages_topic, first_messages(conversations))
    async with worker("segmenter", directory, environment) as segmenter:
        kafka = settings.kafka
        await until_consumed(kafka, kafka.group_of("segmenter"), kafka.messages_topic, READ_SECONDS)
        after_reading = memory_bytes(segmenter.pid)
    shutil.rmtree(state)
    segmenter.process.log.unlink()
    reading = await asyncio.to_thread(rate_of_reading, settings)
    began = time.monotonic()
    async with worker("segmenter", directory, environment) as segmenter:
        ready = time.monotonic() - began
        recovered = [memory_bytes(segmenter.pid, name) for name in ("VmRSS", "RssAnon")]
    recovery = rate_of_recovery(segmenter.process.log)
    return {
        "": f"{conversations:,}",
        "RSS after reading": megabytes(after_reading),
        "RSS recovered": megabytes(recovered[0]),
        "without mapped files": megabytes(recovered[1]),
        "until ready": f"{ready:.1f} s",
        "recovery": f"{recovery:,.0f} records/s",
        "plain reading": f"{reading:,.0f} records/s",
        "ratio": ratio(recovery / reading),
    }


def rate_of_reading(settings: Settings) -> float:
    """Return the records/s that a consumer in its own process reads."""
    topics = [settings.kafka.changelog(table) for table in TABLES]
    command = [sys.executable, "-m", "benchmarks.programs", "read-topics", settings.kafka.bootstrap_servers]
    done = subprocess.run([*command, str(PARTITIONS), *topics], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    return found["records"] / found["seconds"]


def rate_of_recovery(log: Path) -> float:
    """Return the records of all partitions divided by the seconds of the slowest one, as logged by the worker."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    found = [line for line in lines if line.get("event") == "recovered"]
    if len(found) != PARTITIONS:
        raise RuntimeError(f"not every partition was recovered once: {found}")
    return sum(line["records"] for line in found) / max(line["seconds"] for line in found)


def first_messages(conversations: int) -> Iterator[tuple[bytes, bytes]]:
    text = "the order arrived late and the customer asks for a refund of the delivery fee " * 4
    for number in range(conversations):
        name = f"open-{number:08}"
        message = {"id": f"m-{number}", "conversation_id": name, "user_id": "u-1", "role": "user", "content": ""}
        message["content"] = text[: MESSAGE_BYTES - len(orjson.dumps(message))]
        yield name.encode(), orjson.dumps(message)
