"""What Qdrant's own engine keeps in its files after a deletion, apart from its log."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from afterword.streams.settings import Qdrant
from afterword.streams.stores.qdrant import QdrantIndex, connect_qdrant
from tests.indexing import put
from tests.qdrant_engine import routes_in, shard_of
from tests.qdrant_server import QdrantServer
from tests.samples import a_summary

NEEDLE = "needle-4711"
EPISODES = 1200
"""So many that one alone is less than the share of deleted points at which the engine cleans a segment."""


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[QdrantServer]:
    async with QdrantServer(routes=routes_in(tmp_path)) as started:
        yield started


def holding(directory: Path) -> list[str]:
    """Return the files that have the needle."""
    return [str(file) for file in directory.rglob("*") if file.is_file() and NEEDLE.encode() in file.read_bytes()]


@pytest.mark.nightly
async def test_removed_episode_is_in_no_file_after_optimization(server: QdrantServer, tmp_path: Path) -> None:
    index = QdrantIndex(connect_qdrant(Qdrant(url=server.url)), "episodes")
    for ordinal in range(1, EPISODES + 1):
        await put(index, a_summary(ordinal, title="T", short_summary="S", long_summary="L"), "A flight.")
    await put(index, a_summary(1, conversation_id="c2"), "A flight to Rome.", writers=(NEEDLE,))
    shard = shard_of(server.client, "episodes")
    shard.optimize()
    shard.flush()
    assert holding(tmp_path)
    await index.remove("c2:1", 1)
    await index.push_out_removed()
    shard.optimize()
    shard.flush()
    shard.close()
    assert not holding(tmp_path)
    await index.close()
