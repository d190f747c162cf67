"""Compares the SQLite file with Qdrant's engine as search indexes: the same episodes and questions, in turns.

The engine runs in this process, so its row has no request in it. The last row has one: to the Qdrant server in
AFTERWORD_TEST_QDRANT, or else to one in Python, which reads and answers more slowly. All rows share the documents,
which are in memory.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from functools import partial
from operator import methodcaller
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import uuid4

from qdrant_client import AsyncQdrantClient
from qdrant_client.http import models

from afterword.reading.memory import Memory
from afterword.schemas import EpisodeClosed
from afterword.streams.settings import Qdrant
from afterword.streams.stores.episodes import StoredEpisode
from afterword.streams.stores.index import Dense, EpisodeIndex, SearchText, searchable
from afterword.streams.stores.qdrant import HttpConnection, QdrantIndex, connect_qdrant
from afterword.streams.stores.sqlite import SqliteFile
from afterword.streams.stores.sqlite_index import SqliteIndex
from afterword.streams.summarizer.embedders import LocalEmbedder, QueryEmbedding, embed_messages
from afterword.streams.summarizer.providers import ExtractiveProvider
from afterword.streams.summarizer.summary import SummaryRequest
from benchmarks.data import episode_of, task_dialogues
from benchmarks.measuring import Form, milliseconds, percentiles, quantile, ratio, show
from benchmarks.recall import ROLLING_TOKENS, archived_of
from tests.doubles.stores import MemoryEpisodes, MemoryMessages
from tests.qdrant_engine import queried, routes_in, shard_of, upserted
from tests.qdrant_server import QdrantServer
from tests.samples import a_stored_episode_of

EPISODES, SHORT_EPISODES, OF_A_USER = 2000, 60, 50
TOGETHER, CHUNK = 16, 80
"""Number of episodes that are written at the same time, and that one index is given before the next one's turn."""
ALONE = 20
"""Of a chunk, the number of episodes that are written one after another."""
QUESTIONS, SHORT_QUESTIONS, WARM_UP = 500, 20, 5


class EngineClient(AsyncQdrantClient):
    """A client whose writes and searches are the engine's own, in this process; its other calls go to the server.

    The two take only those arguments that the index gives.
    """

    def __init__(self, server: QdrantServer) -> None:
        super().__init__(url=server.url, check_compatibility=False)
        self._server = server

    async def upsert(self, collection_name: str, points: Any, **asked: Any) -> Any:  # type: ignore[override]
        wanted = models.PointsList(points=points, update_filter=asked["update_filter"])
        return await asyncio.to_thread(upserted, shard_of(self._server.client, collection_name), wanted)

    async def query_points(self, collection_name: str, **asked: Any) -> Any:  # type: ignore[override]
        wanted = models.QueryRequest(filter=asked.pop("query_filter", None), **asked)
        points = await asyncio.to_thread(queried, shard_of(self._server.client, collection_name), wanted)
        return models.QueryResponse(points=[models.ScoredPoint(**point) for point in points])


class Indexed(NamedTuple):
    """What an index is given of an episode."""

    episode: StoredEpisode
    texts: Mapping[str, SearchText]
    vectors: Mapping[str, Dense]


class Times(NamedTuple):
    """Seconds of each call."""

    alone: list[float]
    together: list[float]
    """Seconds of a chunk's other episodes, divided by their number."""
    recalls: list[float]


class Documents:
    """Episodes, their messages, and questions about them with the user who asks."""

    def __init__(self) -> None:
        self.embedder, self.stored, self.messages = LocalEmbedder(), MemoryEpisodes(), MemoryMessages()
        self.given = list[Indexed]()
        self.questions = list[tuple[str, str]]()

    async def add(self, closed: EpisodeClosed) -> None:
        summary = await ExtractiveProvider().summarize(SummaryRequest(closed, "", ROLLING_TOKENS))
        episode, texts = a_stored_episode_of(closed, summary), searchable(closed.messages)
        await self.stored.put(episode, None)
        await self.messages.assign(closed.episode_id, list(archived_of(closed)))
        self.given.append(Indexed(episode, texts, await embed_messages(self.embedder, texts)))
        self.questions += [(one.content, closed.user_id) for one in closed.messages if one.role == "user"]

    def memory(self, index: EpisodeIndex) -> Memory:
        return Memory(self.stored, self.messages, index.search, embed=QueryEmbedding(self.embedder))


async def run(form: Form, directory: Path) -> None:
    count = max(form.messages, default=SHORT_EPISODES if form.short else EPISODES)
    documents = Documents()
    for closed in _episodes(count):
        await documents.add(closed)
    asked = Random(count).sample(documents.questions, SHORT_QUESTIONS if form.short else QUESTIONS)
    model = documents.embedder.model
    async with QdrantServer(routes=routes_in(directory, has_log=True)) as server:
        address = os.environ.get("AFTERWORD_TEST_QDRANT")
        connections = HttpConnection(EngineClient(server)), connect_qdrant(Qdrant(url=address or server.url))
        engine, http = (QdrantIndex(connection, f"bench{uuid4().hex}", model) for connection in connections)
        sqlite = SqliteIndex(SqliteFile(directory / "afterword.sqlite"), model)
        requested = "Qdrant's server" if address else "– with a request"
        indexes: dict[str, EpisodeIndex] = {"SQLite": sqlite, "Qdrant's engine": engine, requested: http}
        times = {name: Times([], [], []) for name in indexes}
        for start in range(0, count, CHUNK):
            for name, index in indexes.items():
                await _write(index, documents.given[start : start + CHUNK], times[name])
        for qdrant in (engine, http)[: 1 if address else 2]:
            shard_of(server.client, qdrant.collection).optimize()
        if address:
            await connections[1].run(partial(_until_green, collection=http.collection))
        await _recall({name: documents.memory(index) for name, index in indexes.items()}, asked, times)
        if address:
            await connections[1].run(methodcaller("delete_collection", http.collection))
        for index in indexes.values():
            await index.close()
    size = sum(len(one.texts) for one in documents.given)
    title = f"{count:,} episodes of {-(-count // OF_A_USER)} users, {size:,} messages with vectors"
    show(title, [_row(name, each, times["SQLite"]) for name, each in times.items()])


async def _until_green(client: AsyncQdrantClient, collection: str) -> None:
    """Wait until the server has optimized the collection."""
    while (await client.get_collection(collection)).status != models.CollectionStatus.GREEN:  # noqa: ASYNC110 – only polling tells
        await asyncio.sleep(0.5)


def _episodes(count: int) -> Iterator[EpisodeClosed]:
    dialogues = [turns for _, turns in task_dialogues()]
    for n in range(count):
        turns = [turn[:2] for turn in dialogues[n % len(dialogues)]]
        yield episode_of(f"c{n}", turns, f"user-{n // OF_A_USER}")


async def _write(index: EpisodeIndex, given: list[Indexed], times: Times) -> None:
    for one in given[:ALONE]:
        began = time.perf_counter()
        await index.put(*one)
        times.alone.append(time.perf_counter() - began)
    waiting, began = iter(given[ALONE:]), time.perf_counter()

    async def write() -> None:
        for one in waiting:
            await index.put(*one)

    await asyncio.gather(*(write() for _ in range(TOGETHER)))
    if others := len(given) - ALONE:
        times.together.append((time.perf_counter() - began) / others)


async def _recall(memories: Mapping[str, Memory], asked: list[tuple[str, str]], times: Mapping[str, Times]) -> None:
    for at, (text, user_id) in enumerate(asked):
        for name, memory in memories.items():
            began = time.perf_counter()
            await memory.recall(text, user_id=user_id, tenant_id=None)
            if at >= WARM_UP:
                times[name].recalls.append(time.perf_counter() - began)


def _row(name: str, times: Times, sqlite: Times) -> dict[str, str]:
    row = {"": name}
    for field, label in {"recalls": "recall", "alone": "put alone", "together": f"put, {TOGETHER} at a time"}.items():
        p50, its = (quantile(getattr(each, field), 0.5) for each in (times, sqlite))
        row |= {label: milliseconds(p50), f"{label} ÷ SQLite's": ratio(p50 / its)}
    return row | {"recall, p99": percentiles(times.recalls)["p99"]}
