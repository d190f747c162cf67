"""A deployment for each test, and real dialogues to send through it."""

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from afterword.streams.settings import Settings
from tests.e2e.deployment import Deployment, deployed
from tests.openai_server import llm_server

__all__ = ["llm_server"]

DIALOGUES = Path(__file__).parents[1] / "data" / "dialogues.jsonl"


@pytest.fixture
def dialogues() -> list[bytes]:
    """Sixty real dialogues."""
    return DIALOGUES.read_bytes().splitlines()


@pytest.fixture(autouse=True)
def quiet_clients() -> Iterator[None]:
    """Silence clients of a stopped broker, which log that many times a second."""
    logger = logging.getLogger("aiokafka")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Settings:
    """Use timeouts as short as Kafka allows, so that failures are noticed during a test."""
    return make_settings(kafka={"partitions": 4, "session_timeout_seconds": 6}, drain_seconds=10)


@pytest_asyncio.fixture
async def deployment(settings: Settings, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployed(settings, tmp_path) as ready:
        yield ready
