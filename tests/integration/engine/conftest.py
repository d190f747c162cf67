"""A laboratory for each test, on the shared broker."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest_asyncio

from tests.integration.engine.lab import Lab, laboratory
from tests.stack import Stack


@pytest_asyncio.fixture
async def lab(stack: Stack, unique: Callable[[str], str], tmp_path: Path) -> AsyncIterator[Lab]:
    async with laboratory(stack.bootstrap_servers, unique("engine"), tmp_path) as ready:
        yield ready
