"""The commands that read the index, while a worker has the file open and while nobody does."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from afterword.streams.settings import EmbedderSettings, Settings, Sqlite
from afterword.streams.stores.index import EpisodeIndex
from afterword.streams.stores.opening import open_stores
from tests.indexing import put
from tests.samples import a_summary

pytestmark = pytest.mark.nightly


@pytest.fixture(
    params=[
        EmbedderSettings(provider="none"),
        EmbedderSettings(provider="local"),
        EmbedderSettings(provider="ollama", model="m"),
    ],
    ids=lambda e: e.provider,
)
def settings(tmp_path: Path, request: pytest.FixtureRequest) -> Settings:
    return Settings(sqlite=Sqlite(path=tmp_path / "afterword.sqlite"), embedder=request.param)


@pytest_asyncio.fixture
async def owner(settings: Settings) -> AsyncIterator[EpisodeIndex]:
    """Open the index as a worker with these settings, with one episode in it."""
    async with open_stores(settings) as stores:
        await put(stores.index, a_summary(), "text", [0.6, 0.8] if settings.embedder.vectors_model else None)
        yield stores.index


async def indexed_episodes(settings: Settings, names: Sequence[str]) -> set[str]:
    async with open_stores(settings) as stores:
        return set(await stores.index.revisions(names))


async def test_the_audit_looks_into_the_collection_that_the_worker_wrote(settings, owner):
    await owner.close()
    assert await indexed_episodes(settings, ["c1:1", "c1:2"]) == {"c1:1"}


async def test_the_audit_looks_into_it_while_a_worker_has_it_open(settings, owner):
    assert await indexed_episodes(settings, ["c1:1", "c1:2"]) == {"c1:1"}
