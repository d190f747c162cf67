"""Fixtures for tests on real and on missing servers."""

import gc
import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Reserve a port of this machine on which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture(scope="module", autouse=True)
def _complaints_come_here() -> Iterator[None]:
    """Collect what a module leaves in its own time.

    asyncio logs what nobody waited for when it is collected, and CPython 3.11 parses source code to log a traceback: a
    later test that parses some itself was met in the middle of it, and failed ("recursion depth mismatch").
    """
    yield
    gc.collect()
