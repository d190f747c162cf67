"""Fixtures for everyone: one stack for the whole run, and names that keep tests out of each other's way."""

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import hypothesis
import pytest
import pytest_asyncio

from afterword.streams.settings import Settings, load_settings
from tests.qdrant import VARIABLE, chosen_address, running_qdrant
from tests.stack import Stack, running_stack

MakeSettings = Callable[..., Settings]

if (Path(__file__).parents[1] / ".afterword").exists():  # somebody has run the demo here: its servers are not ours
    os.environ.setdefault("AFTERWORD_CONFIG", "")

for name, examples in {"push": 30, "nightly": 300}.items():
    # a machine that is busy is no failure: whatever has to be quick shows it in a benchmark
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile(name, max_examples=examples, deadline=None, suppress_health_check=slow)
hypothesis.settings.load_profile("push")  # make test-all says --hypothesis-profile=nightly


@pytest_asyncio.fixture(scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Kafka and MongoDB, started when the first test asks for them; shared, so take fresh names from `unique`."""
    async with running_stack(tmp_path_factory.mktemp("stack")) as started:
        yield started


@pytest_asyncio.fixture(scope="session")
async def qdrant_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Qdrant's own server, shared: take a fresh collection from `unique`. Skips the test where there is none."""
    if address := chosen_address():
        yield f"http://{address}"
        return
    async with running_qdrant(tmp_path_factory.mktemp("qdrant")) as server:
        if server is None:
            pytest.skip(f"no Qdrant server: {VARIABLE}=host:port names one")
        yield server.url


@pytest.fixture
def unique() -> Callable[[str], str]:
    """A name that nobody else has: unique("messages") → "messages-3f9c1a2b"; the same within one test."""
    suffix = uuid4().hex[:8]
    return lambda name: f"{name}-{suffix}"


@pytest.fixture
def database_name(unique: Callable[[str], str]) -> str:
    """A MongoDB database of this test's own."""
    return unique("test")


@pytest.fixture
def make_settings(stack: Stack, unique: Callable[[str], str], database_name: str, tmp_path: Path) -> MakeSettings:
    """Settings for the shared stack with topics, database, index and state of this test's own.

    Overrides are merged section by section: make_settings(kafka={"partitions": 2}, drain_seconds=5).
    """

    def make(**overrides: Any) -> Settings:
        return stack_settings(stack, unique(""), database_name, tmp_path, **overrides)

    return make


def stack_settings(stack: Stack, suffix: str, database: str, directory: Path, **overrides: Any) -> Settings:
    """Make settings for the stack, with topics that end in `suffix`. Fixtures that are not of one test need them."""
    server = stack.environment().get("AFTERWORD_QDRANT__URL")
    index: dict[str, Any] = {"url": server} if server else {"path": directory / "qdrant"}

    def name(of: str) -> str:
        return f"{of}{suffix}"

    ours: dict[str, Any] = {
        "state_dir": directory / "state",
        "kafka": {
            "bootstrap_servers": stack.bootstrap_servers,
            "messages_topic": name("messages"),
            "episodes_topic": name("episode.closed"),
            "summaries_topic": name("summary.created"),
            "deletions_topic": name("summary.deleted"),
            "conversations_topic": name("conversation.updated"),
            "segmenter_id": name("segmenter"),
            "summarizer_id": name("summarizer"),
            "archiver_id": name("archiver"),
            "webhooks_id": name("webhooks"),
        },
        "mongo": {"uri": stack.mongo_uri, "database": database},
        "qdrant": {**index, "collection": name("episodes")},
    }
    return load_settings(**_merged(ours, overrides))


def _merged(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    sections = {
        name: {**base[name], **value} if isinstance(value, dict) and name in base else value
        for name, value in overrides.items()
    }
    return {**base, **sections}
