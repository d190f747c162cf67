"""Fixtures for all tests: one stack for the whole run, and names that are unique to a test."""

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

import tests.hypothesis_profiles  # noqa: F401 – loading it sets the profile
from afterword.streams.settings import Mongo, Settings, load_settings
from tests.mongo_server import running_mongo
from tests.stack import Stack, running_stack

MakeSettings = Callable[..., Settings]

MONGO_URI, QDRANT_URL = "AFTERWORD_MONGO__URI", "AFTERWORD_QDRANT__URL"
MONGO_VARIABLE = "AFTERWORD_TEST_MONGO"
"""URI of a MongoDB server, in which each test takes a database of its own."""
QDRANT_VARIABLE = "AFTERWORD_TEST_QDRANT"
"""`host:port` of a Qdrant server."""

# the developer's own settings must not lead tests to other servers
if (Path(__file__).parents[1] / ".afterword").exists():
    os.environ.setdefault("AFTERWORD_CONFIG", "")


@pytest_asyncio.fixture(scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Kafka, started when the first test asks for it; shared, so take fresh names from `unique`."""
    async with running_stack(tmp_path_factory.mktemp("stack")) as started:
        yield started


@pytest_asyncio.fixture(scope="session")
async def mongo_uri(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A MongoDB server, shared: take a fresh database from `database_name`."""
    if uri := os.environ.get(MONGO_VARIABLE) or stack.environment().get(MONGO_URI):
        yield uri
        return
    async with running_mongo(tmp_path_factory.mktemp("mongo")) as server:
        yield server.uri


@pytest.fixture(scope="session")
def qdrant_url(stack: Stack) -> str:
    """Return a real Qdrant server, which tests share: take a fresh collection from `unique`. Skips the test if there is
    none.
    """
    if address := os.environ.get(QDRANT_VARIABLE):
        return f"http://{address}"
    if url := stack.environment().get(QDRANT_URL):
        return url
    pytest.skip(f"no Qdrant server: {QDRANT_VARIABLE}=host:port names one")


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Return a unique name: unique("messages") → "messages-3f9c1a2b". It is the same within one test."""
    suffix = uuid4().hex[:8]
    return lambda name: f"{name}-{suffix}"


@pytest.fixture
def database_name(unique: Callable[[str], str]) -> str:
    """A MongoDB database of this test's own."""
    return unique("test")


@pytest.fixture
def mongo_settings(mongo_uri: str, database_name: str) -> Mongo:
    """A MongoDB database of this test's own."""
    return Mongo.model_validate({"uri": mongo_uri, "database": database_name})


@pytest.fixture
def make_settings(stack: Stack, unique: Callable[[str], str], database_name: str, tmp_path: Path) -> MakeSettings:
    """Return a function that makes settings for the shared stack, with the test's own topics, stores and state.

    Overrides are merged section by section: make_settings(kafka={"partitions": 2}, drain_seconds=5).
    """

    def make(**overrides: Any) -> Settings:
        return stack_settings(stack, unique(""), database_name, tmp_path, **overrides)

    return make


def stack_settings(stack: Stack, suffix: str, database: str, directory: Path, **overrides: Any) -> Settings:
    """Make settings for the stack, with topics that end in `suffix`, for fixtures that several tests share."""
    given = stack.environment()

    def name(of: str) -> str:
        return f"{of}{suffix}"

    stores: dict[str, Any] = {"sqlite": {"path": directory / "afterword.sqlite"}}
    if MONGO_URI in given:
        stores = {
            "mongo": {"uri": given[MONGO_URI], "database": database},
            "qdrant": {"url": given[QDRANT_URL], "collection": name("episodes")},
        }
    ours: dict[str, Any] = {
        "state_dir": directory / "state",
        "kafka": {
            "bootstrap_servers": stack.bootstrap_servers,
            "messages_topic": name("messages"),
            "prefix": f"{suffix[1:]}-" if suffix else "",
        },
        **stores,
    }
    return load_settings(**_merged(ours, overrides))


def _merged(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    sections = {
        name: {**base[name], **value} if isinstance(value, dict) and name in base else value
        for name, value in overrides.items()
    }
    return {**base, **sections}
