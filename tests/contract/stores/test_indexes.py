import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from qdrant_client import AsyncQdrantClient

from streams.stores.index import EpisodeIndex
from streams.stores.memory_index import MemoryIndex
from streams.stores.qdrant import QdrantIndex
from streams.stores.qdrant_connection import Local, Server
from tests.samples import a_summary

# the client warns that its local mode has no payload indexes, which only a server is asked for
pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect:UserWarning")


def make(kind: str, path: Path) -> EpisodeIndex:
    if kind == "memory":
        return MemoryIndex()
    connection = Local(path) if kind == "local" else Server(AsyncQdrantClient(":memory:"))
    return QdrantIndex(connection, "episodes")


@pytest_asyncio.fixture(params=["memory", "local", "async client"])
async def index(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EpisodeIndex]:
    made = make(request.param, tmp_path / "qdrant")
    yield made
    await made.close()


async def ids(index: EpisodeIndex) -> list[str]:
    return sorted([episode_id async for episode_id in index.all_ids()])


async def test_an_empty_index_has_nothing(index: EpisodeIndex) -> None:
    await index.ping()
    assert await index.has(["c1:1"]) == set()
    assert await ids(index) == []


async def test_what_was_put_is_there_once_however_often_it_is_put(index: EpisodeIndex) -> None:
    for ordinal in (1, 2, 1, 1):
        await index.put(a_summary(ordinal), "A flight to Rome, please.")
    assert await index.has(["c1:1", "c1:2", "c1:3"]) == {"c1:1", "c1:2"}
    assert await index.has([]) == set()
    assert await ids(index) == ["c1:1", "c1:2"]


async def test_many_writers_at_once_are_fine(index: EpisodeIndex) -> None:
    await asyncio.gather(*(index.put(a_summary(n % 5 + 1), "text") for n in range(20)))
    assert await ids(index) == [f"c1:{n}" for n in range(1, 6)]


async def test_a_text_without_any_words_is_indexed_too(index: EpisodeIndex) -> None:
    await index.put(a_summary(title="…", short_summary="?", long_summary="!"), "")
    assert await ids(index) == ["c1:1"]


async def test_more_than_a_page_is_listed(index: EpisodeIndex) -> None:
    for ordinal in range(1, 1003):
        await index.put(a_summary(ordinal, title="T", short_summary="S", long_summary="L"), "t")
    assert len(set(await ids(index))) == 1002
