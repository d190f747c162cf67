"""A laboratory for each test, on the shared broker, and at night also on one with the transactions of Kafka 3."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from afterword.embedded import EmbeddedStack
from tests.integration.engine.lab import Lab, laboratory
from tests.stack import Stack, chosen_jars

OLD_TRANSACTIONS = ("--feature", "transaction.version=0")


@pytest_asyncio.fixture(scope="session")
async def old_stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedStack]:
    directory = tmp_path_factory.mktemp("old")
    async with EmbeddedStack(directory, jars=chosen_jars(), format_arguments=OLD_TRANSACTIONS) as started:
        yield started


@pytest.fixture(params=["stack", pytest.param("old_stack", marks=pytest.mark.nightly)])
def broker(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest_asyncio.fixture
async def lab(broker: Stack, unique: Callable[[str], str], tmp_path: Path) -> AsyncIterator[Lab]:
    async with laboratory(broker.bootstrap_servers, unique("engine"), tmp_path) as ready:
        yield ready
