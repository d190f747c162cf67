"""The servers that integration tests run against: embedded, or the official images through Testcontainers."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from afterword.embedded import EmbeddedStack

VARIABLE = "AFTERWORD_TEST_STACK"
EMBEDDED, CONTAINERS = "embedded", "containers"


class Stack(Protocol):
    """What tests may rely on, whichever stack it is. Whoever needs to kill a server starts an EmbeddedStack instead."""

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def mongo_uri(self) -> str: ...

    def environment(self) -> dict[str, str]:
        """Variables that point a worker at this stack."""
        ...


@asynccontextmanager
async def running_stack(directory: Path) -> AsyncIterator[Stack]:
    """The one that the environment asks for; skips the test when that cannot be had."""
    match os.environ.get(VARIABLE, EMBEDDED):
        case "embedded":
            async with EmbeddedStack(directory) as embedded:
                yield embedded
        case "containers":
            from tests.containers import container_stack  # the engine's client is imported only where it is wanted

            async with container_stack(directory) as containers:
                yield containers
        case other:
            raise ValueError(f"{VARIABLE}={other}: {EMBEDDED} or {CONTAINERS}")
