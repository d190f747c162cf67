"""`Memory.recall` of one user with 1,000 and 50,000 episodes of ten messages.

What is said are turns of SuperDialseg's dialogues in random order, and the questions are such turns, too. The index is
in a directory, the messages and episodes are in the embedded MongoDB.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from afterword.embedded import EmbeddedStack
from afterword.memory import Memory
from afterword.schemas import MessageCreated
from afterword.schemas.ids import message_key
from afterword.streams.stores import mongo
from afterword.streams.stores.documents import episode_document, message_document
from afterword.streams.stores.index import raw_text
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.stores.mongo import MongoEpisodes, MongoMessages
from afterword.streams.stores.sqlite_index import SqliteIndex
from benchmarks.context import Traffic, connected
from benchmarks.quantiles import quantile
from benchmarks.recall.corpora import LEAST_WORDS, dialogue_rows
from benchmarks.suite import Finding, Form, Line
from tests.dialogues import expand
from tests.samples import NOON, a_stored_episode

AIMS = {1_000: 0.010, 10_000: 0.020, 50_000: 0.030, 100_000: 0.040}
"""Seconds of a recall, median, up to so many episodes."""
SIZES, SHORT_SIZES = (1_000, 50_000), (1_000,)
"""Episodes; others are given with `--messages`."""
EPISODE_MESSAGES = 10
CALLS = 50
BATCH = 100
SEED = 15


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    turns = [message.content for row in dialogue_rows() for message in expand(row["id"], row["dialogue"])]
    async with EmbeddedStack(directory / "stack") as stack:
        given = [messages // EPISODE_MESSAGES for messages in sorted(form.messages)]
        sizes = given or (SHORT_SIZES if form.short else SIZES)
        lines = [await measured(stack.mongo_uri, directory / f"index-{size}", size, turns) for size in sizes]
    title = f"recall: one user, {EPISODE_MESSAGES} messages an episode, {CALLS} questions one after the other"
    return [Finding(title, lines)]


async def measured(uri: str, directory: Path, size: int, turns: Sequence[str]) -> Line:
    random, index = Random(SEED), SqliteIndex(directory, "episodes")
    questions = random.sample([turn for turn in turns if len(turn.split()) >= LEAST_WORDS], CALLS + 1)
    try:
        async with connected(uri, f"recall-{size}", Traffic()) as database:
            await fill(database, index, size, turns, random)
            episodes, messages = MongoEpisodes(database), MongoMessages(database)
            memory = Memory(episodes, messages, index.search)
            seconds = [await timed(memory, question) for question in questions][1:]
    finally:
        await index.close()
    return line(size, seconds)


async def fill(
    database: mongo.MongoDatabase, index: SqliteIndex, size: int, turns: Sequence[str], random: Random
) -> None:
    await mongo.ensure_indexes(database)
    for first in range(1, size + 1, BATCH):
        said, told = [], []
        for number in range(first, min(first + BATCH, size + 1)):
            conversation, ids = f"c{number}", tuple(f"m{n}" for n in range(EPISODE_MESSAGES))
            texts = random.choices(turns, k=EPISODE_MESSAGES)
            stored = a_stored_episode(1, conversation_id=conversation, message_ids=ids)
            told.append(episode_document(stored))
            said += [archived(conversation, *one) for one in zip(ids, texts, strict=True)]
            await index.put(stored.summary, raw_text(texts))
        await database["episodes"].insert_many(told, ordered=False)
        await database["messages"].insert_many(said, ordered=False)


def archived(conversation: str, message_id: str, text: str) -> dict[str, Any]:
    message = MessageCreated(
        id=message_id,
        conversation_id=conversation,
        user_id="u1",
        tenant_id="t1",
        role="user",
        content=text,
        sent_at=NOON,
    )
    return message_document(ArchivedMessage(message, 0, 0)) | {"_id": message_key(conversation, message_id, "t1")}


async def timed(memory: Memory, question: str) -> float:
    began = time.monotonic()
    if not await memory.recall(question, user_id="u1", tenant_id="t1"):
        raise RuntimeError(f"nothing was found of {question!r}")
    return time.monotonic() - began


def line(size: int, seconds: Sequence[float]) -> Line:
    half = quantile(seconds, 0.5)
    figures = {f"p{share * 100:.0f}": f"{quantile(seconds, share) * 1000:.1f} ms" for share in (0.5, 0.99)}
    most = next((seconds for episodes, seconds in AIMS.items() if size <= episodes), None)
    aim, met = (f"p50 ≤ {most * 1000:.0f} ms", half <= most) if most else ("", None)
    return Line(f"{size:,} episodes", figures, aim=aim, met=met)
