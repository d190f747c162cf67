"""A Qdrant server of its own, for tests: a real one where there is one, else the stand-in.

A real one is started by a script, `qdrant.sh DIRECTORY PORT [API_KEY]`, that runs it on this machine in the foreground.
"""

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import httpx

from afterword.embedded.claims import HOST, free_ports, is_free
from afterword.embedded.process import NotReady, Process, Server, until_ready
from tests.qdrant_server import QdrantServer

VARIABLE = "AFTERWORD_TEST_QDRANT"
STAND_IN = "stand-in"
"""Value of the variable: start no real server, even where there is one."""
ROOT = Path(__file__).parents[1]
SCRIPT = Path("shared", "tools", "qdrant", "qdrant.sh")
"""Script beside the checkout."""
OK = 200


class Breakable(Protocol):
    """Server that a fault can break."""

    port: int

    def killed(self) -> AbstractAsyncContextManager[None]:
        """Dead inside the block; after it there again, on the same port and with all that it acknowledged."""
        ...


class RealQdrant(Server):
    """Qdrant's own server on a port and directory that stay the same."""

    def __init__(self, script: Path, directory: Path, api_key: str | None = None) -> None:
        super().__init__()
        # gRPC's port is the next one
        self.port = next(port for port in iter(lambda: free_ports(1)[0], None) if is_free(port + 1))
        self._command = [str(script), str(directory / "data"), str(self.port), *([api_key] if api_key else [])]
        self._log = directory / "qdrant.log"

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    async def run(self) -> None:
        """Start it, and wait until it answers."""
        self.start()
        await until_ready(self.process, self._is_ready)

    @asynccontextmanager
    async def killed(self) -> AsyncIterator[None]:
        self.kill()
        yield
        await self.run()

    def _launch(self) -> Process:
        return Process("qdrant", self._command, self._log)

    async def _is_ready(self) -> None:
        try:
            async with httpx.AsyncClient() as client:
                status = (await client.get(f"{self.url}/readyz")).status_code
        except httpx.TransportError as error:
            raise NotReady(str(error)) from error
        if status != OK:
            raise NotReady(f"status {status}")


def script() -> Path | None:
    """The script that starts a real server: beside this checkout, or, of a git worktree, beside the main one."""
    if os.environ.get(VARIABLE) == STAND_IN:
        return None
    places = [checkout.parent / SCRIPT for checkout in (ROOT, main_checkout(ROOT))]
    return next((place for place in places if place.is_file()), None)


def main_checkout(root: Path) -> Path:
    """The checkout that has the repository; of a worktree, `.git` is a file that names MAIN/.git/worktrees/NAME."""
    link = root / ".git"
    return Path(link.read_text().removeprefix("gitdir:").strip()).parents[2] if link.is_file() else root


def chosen_address() -> str | None:
    """`host:port` of a server that runs already, from the environment."""
    chosen = os.environ.get(VARIABLE)
    return None if chosen == STAND_IN else chosen


@asynccontextmanager
async def running_qdrant(directory: Path, api_key: str | None = None) -> AsyncIterator[RealQdrant | None]:
    """A real server with its data in `directory`; None where there is none."""
    found = script()
    if found is None:
        yield None
        return
    server = RealQdrant(found, directory, api_key)
    try:
        await server.run()
        yield server
    finally:
        server.stop()


@asynccontextmanager
async def breakable_qdrant(directory: Path) -> AsyncIterator[Breakable]:
    """A server that may be killed: real where there is a script for it, else the stand-in."""
    async with running_qdrant(directory) as real:
        if real:
            yield real
        else:
            async with QdrantServer() as stand_in:
                yield stand_in
