"""What Qdrant's own engine keeps in its files after a deletion, apart from its log."""

import struct
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

USER, VECTOR = "needle-4711", [0.6, 0.8]
NEEDLES = USER.encode(), struct.pack("<2f", *VECTOR)
EPISODES = 1200
"""So many that one alone is less than the share of deleted points at which the engine cleans a segment."""


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[QdrantServer]:
    async with QdrantServer(routes=routes_in(tmp_path)) as started:
        yield started


def holding(directory: Path) -> set[bytes]:
    """Return the needles that are in any file. Other parts of a payload cannot be found: it is compressed."""
    files = [file.read_bytes() for file in directory.rglob("*") if file.is_file()]
    return {needle for needle in NEEDLES if any(needle in content for content in files)}


@pytest.mark.nightly
async def test_removed_episode_is_in_no_file_after_optimization(server: QdrantServer, tmp_path: Path) -> None:
    index = QdrantIndex(connect_qdrant(Qdrant(url=server.url)), "episodes", "m")
    for ordinal in range(1, EPISODES + 1):
        await put(index, a_summary(ordinal, title="T", short_summary="S", long_summary="L"), "A flight.", [1.0, 0.0])
    await put(index, a_summary(1, conversation_id="c2"), "A flight to Rome.", VECTOR, writers=(USER,))
    shard = shard_of(server.client, index.collection)
    shard.optimize()
    shard.flush()
    assert holding(tmp_path) == {*NEEDLES}
    await index.remove("c2:1", 1)
    await index.push_out_removed()
    shard.optimize()
    shard.flush()
    shard.close()
    assert holding(tmp_path) == set()
    await index.close()
