"""A real LLM on this machine, for tests that `make test-llm` runs."""

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from afterword.embedded.claims import HOST, free_ports
from afterword.embedded.process import NotReady, Process, Server, until_ready
from afterword.streams.settings import Llm

VARIABLE = "AFTERWORD_TEST_LLM"
"""Names the Python of the environment that has the server and the model."""
THREADS_VARIABLE = "AFTERWORD_TEST_LLM_THREADS"
SERVER = Path(__file__).parent / "llama_server.py"
MODEL = "smollm2-135m"
SLOTS = 2
CONTEXT_TOKENS = 4096
LONGEST_SECONDS = 3600
OK = 200


class Llama(Server):
    """llama.cpp's server, always on the same port."""

    def __init__(self, python: str, log: Path) -> None:
        [self.port] = free_ports(1)
        given = (self.port, os.environ.get(THREADS_VARIABLE, "1"), SLOTS, CONTEXT_TOKENS, LONGEST_SECONDS)
        self._command = [python, str(SERVER), *map(str, given)]
        self._log = log

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def settings(self, **fields: Any) -> Llm:
        """Settings of the provider `openai` that ask this server."""
        given = {"provider": "openai", "base_url": f"{self.url}/v1", "model": MODEL, "context_tokens": CONTEXT_TOKENS}
        return Llm.model_validate({**given, "max_concurrency": SLOTS, "timeout_seconds": 300, **fields})

    async def listening(self) -> None:
        """Wait until it answers, even if it is still loading its model."""
        await until_ready(self.process, self._status)

    async def ready(self) -> None:
        """Wait until it has loaded its model."""

        async def loaded() -> None:
            if (status := await self._status()) != OK:
                raise NotReady(f"status {status}")

        await until_ready(self.process, loaded)

    def _launch(self) -> Process:
        return Process("llama.cpp", self._command, self._log)

    async def _status(self) -> int:
        try:
            async with httpx.AsyncClient(trust_env=False) as client:
                return (await client.get(f"{self.url}/health")).status_code
        except httpx.TransportError as error:
            raise NotReady(str(error)) from error


@pytest.fixture(scope="session")
def start_llama(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Llama]:
    """Yield a function that starts a server. Skips the test unless `make test-llm` runs it."""
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"no real LLM is asked for: make test-llm runs this one ({VARIABLE} is not set)")

    def start() -> Llama:
        llama = Llama(str(Path(python).absolute()), tmp_path_factory.mktemp("llama") / "llama.log")
        llama.start()
        return llama

    return start


@pytest_asyncio.fixture(scope="session")
async def llama(start_llama: Callable[[], Llama]) -> AsyncIterator[Llama]:
    started = start_llama()
    try:
        await started.ready()
        yield started
    finally:
        started.stop()
