"""A directory of the embedded default, filled with messages through the whole path, and kept for many measurements.

python -m benchmarks.filling DIRECTORY --messages COUNT [--in-one]

Turns of SuperDialseg's dialogues in random order, all of one user. The workers run as their users start them, without
an LLM. A run that is ended in the midst of it goes on where it was.
"""

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from afterword import MessageCreated, Producer
from afterword.audit.waiting import is_consumed
from afterword.dev import ROLES
from afterword.embedded import EmbeddedStack
from afterword.streams.log_reader import open_log
from afterword.streams.settings import Settings, load_settings
from afterword.topics import ensure_topics
from benchmarks.processes import worker
from benchmarks.recall.corpora import dialogue_rows
from tests.dialogues import expand

CONVERSATION_MESSAGES, EPISODE_MESSAGES = 20, 10
AT_A_TIME = 100
"""Conversations that go on side by side."""
SENT_AT_A_TIME = 1_000
"""Conversations after which it is noted that they are sent; others are sent again, and are duplicates."""
USER = "u1"
FILL_SECONDS = 24 * 3600.0
POLL_SECONDS = 0.5
SEED = 16
NOTE = "filled.json"


@dataclass(frozen=True)
class Shape:
    """What a directory is filled with."""

    messages: int
    each: int = CONVERSATION_MESSAGES
    """Messages of a conversation."""

    @property
    def conversations(self) -> int:
        return self.messages // self.each

    @property
    def name(self) -> str:
        """Name of its directory."""
        return f"{self.messages}-by-{self.each}"


@dataclass(frozen=True)
class Filled:
    """What is in a directory by now, noted in a file of it."""

    conversations: int = 0
    """Numbered from 0."""
    messages: int = 0
    is_done: bool = False
    """All of them are summarized and archived."""
    seconds: float | None = None
    """Duration of that, from the first message; None where it was interrupted."""

    @classmethod
    def of(cls, directory: Path) -> "Filled":
        note = directory / NOTE
        return cls(**json.loads(note.read_text())) if note.exists() else cls()

    def keep(self, directory: Path) -> "Filled":
        (directory / NOTE).write_text(json.dumps(vars(self)))
        return self


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[tuple[EmbeddedStack, Settings]]:
    """The servers on this directory, and settings that point at them."""
    async with EmbeddedStack(directory) as stack:
        yield (
            stack,
            load_settings(
                kafka={"bootstrap_servers": stack.bootstrap_servers},
                mongo={"uri": stack.mongo_uri},
                qdrant={"path": stack.qdrant_path},
                state_dir=stack.state_directory,
            ),
        )


async def fill(directory: Path, shape: Shape) -> Filled:
    """Fill the directory, unless it is filled. Raises: TimeoutError."""
    filled = Filled.of(directory)
    if filled.is_done:
        return filled
    is_new = filled == Filled()
    async with running(directory) as (stack, settings), AsyncExitStack() as workers:
        await ensure_topics(settings)
        for role in ROLES:
            one = await workers.enter_async_context(worker(role, directory, stack.environment()))
            await one.until_ready()
        began = time.monotonic()
        while filled.conversations < shape.conversations:
            last = min(filled.conversations + SENT_AT_A_TIME, shape.conversations)
            filled = await send(settings, directory, range(filled.conversations, last), shape.each)
        await until_done(settings, *ROLES)
        seconds = time.monotonic() - began
    return Filled(filled.conversations, filled.messages, True, seconds if is_new else None).keep(directory)


async def send(settings: Settings, directory: Path, conversations: range, each: int, is_done: bool = False) -> Filled:
    """Send these conversations, and note them. `is_done`: once they are summarized, too, as the caller promises."""
    async with Producer.from_settings(settings) as producer:
        for message in said(conversations, each, turns()):
            await producer.enqueue(message)
        await producer.drain()
    known = Filled.of(directory)
    messages = known.messages + len(conversations) * each
    return Filled(conversations.stop, messages, is_done, known.seconds).keep(directory)


async def until_done(settings: Settings, *roles: str) -> None:
    """Wait until these workers have done all that there is for them. Raises: TimeoutError."""
    kafka = settings.kafka
    reads = {
        "segmenter": (kafka.segmenter_id, kafka.messages_topic),
        "archiver": (kafka.archiver_id, kafka.messages_topic),
        "summarizer": (kafka.summarizer_id, kafka.episodes_topic),
    }
    async with asyncio.timeout(FILL_SECONDS), open_log(kafka) as log:
        for role in sorted(roles, key=list(reads).index):  # the last one reads what the first one writes
            group, topic = reads[role]
            while not await is_consumed(log, group, topic):  # noqa: ASYNC110 – offsets set no event
                await asyncio.sleep(POLL_SECONDS)


def turns() -> list[str]:
    """What is said."""
    return [message.content for row in dialogue_rows() for message in expand(row["id"], row["dialogue"])]


def said(conversations: range, each: int, texts: Sequence[str]) -> Iterator[MessageCreated]:
    """All messages, a block of conversations after the other, those of a block in turn."""
    chance = Random(SEED + conversations.start)
    for first in range(conversations.start, conversations.stop, AT_A_TIME):
        for number in range(each):
            for conversation in range(first, min(first + AT_A_TIME, conversations.stop)):
                yield MessageCreated(
                    id=f"m{number}",
                    conversation_id=name_of(conversation),
                    user_id=USER,
                    role="user" if number % 2 == 0 else "assistant",
                    content=chance.choice(texts),
                )


def name_of(conversation: int) -> str:
    return f"c{conversation}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.filling", description="Fill a directory, and keep it.")
    parser.add_argument("directory", type=Path, help="what `python -m benchmarks --only sizes --keep` is given")
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--in-one", action="store_true", help="all of them in one conversation")
    given = parser.parse_args()
    shape = Shape(given.messages, given.messages if given.in_one else CONVERSATION_MESSAGES)
    directory = given.directory / shape.name
    print(f"{directory}: {asyncio.run(fill(directory, shape))}")


if __name__ == "__main__":
    main()
