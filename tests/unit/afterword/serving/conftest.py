from collections.abc import AsyncIterator

import pytest_asyncio

from tests.unit.afterword.serving.served import Served, serving


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    """A server without authentication, with a client."""
    async with serving() as started:
        yield started
