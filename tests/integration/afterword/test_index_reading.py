"""The commands that look into the index, on a directory, with and without another process in it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from afterword.audit.stores import IndexNotChecked, indexed_episodes
from afterword.streams.settings import EmbedderSettings, Qdrant, Settings
from afterword.streams.stores.qdrant import QdrantIndex, check, open_index
from tests.samples import a_summary

pytestmark = [
    # the client leaves its lock file to the garbage collector when another has the lock
    pytest.mark.filterwarnings("ignore:.*unclosed file.*"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(
    params=[EmbedderSettings(), EmbedderSettings(provider="local"), EmbedderSettings(provider="ollama", model="m")],
    ids=lambda e: e.provider,
)
def settings(tmp_path: Path, request: pytest.FixtureRequest) -> Settings:
    return Settings(qdrant=Qdrant(path=tmp_path / "qdrant"), embedder=request.param)


@pytest_asyncio.fixture
async def owner(settings: Settings) -> AsyncIterator[QdrantIndex]:
    """Index that a worker with these settings has open, one episode in it."""
    index = open_index(settings.qdrant, settings.embedder)
    await index.put(a_summary(), "text", [0.6, 0.8] if settings.embedder.vectors_model else None)
    yield index
    await index.close()


async def test_the_audit_looks_into_the_collection_that_the_worker_wrote(settings, owner):
    await owner.close()
    assert await indexed_episodes(settings, ["c1:1", "c1:2"]) == {"c1:1"}


async def test_an_index_in_use_without_a_known_owner_is_not_checked(settings, owner):
    with pytest.raises(IndexNotChecked, match="in use by another process"):
        await indexed_episodes(settings, ["c1:1"])


async def test_a_directory_in_use_is_fine_for_the_check(settings, owner):
    assert await check(settings.qdrant) == f"{settings.qdrant.path}, in use by a running worker"


async def test_so_is_one_that_nobody_uses(settings):
    assert await check(settings.qdrant) == str(settings.qdrant.path)
