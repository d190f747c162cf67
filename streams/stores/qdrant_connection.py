"""The two ways to reach Qdrant, behind one: a server over HTTP, or the local mode on a directory."""

import asyncio
import math
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from qdrant_client import AsyncQdrantClient, QdrantClient
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import ApiException

from afterword.streams.errors import StoreInUse, StoreUnavailable
from afterword.streams.settings import Qdrant, variable
from afterword.streams.tls import trusting

STORE = "qdrant"
DEFAULT_URL = "http://127.0.0.1:6333"
"""Where a server listens that was started without further settings."""

Call = Callable[[Any], Any]
"""Calls one method of the client it is given. Both clients have the same methods; those of the server's are awaited."""


class Connection(Protocol):
    is_server: bool

    async def run(self, call: Call) -> Any:
        """Raises: StoreUnavailable, of which StoreInUse means that another process has the directory."""
        ...

    async def close(self) -> None: ...


class Server:
    """Qdrant over HTTP."""

    is_server = True

    def __init__(self, client: AsyncQdrantClient) -> None:
        self._client = client

    async def run(self, call: Call) -> Any:
        with unavailable():
            return await call(self._client)

    async def close(self) -> None:
        await self._client.close()


class Local:
    """Qdrant's local mode: one process at a time, and every call in the one thread that opened the directory.

    The client is synchronous, also where it says otherwise, and would hold up the event loop.
    """

    is_server = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._client: QdrantClient | None = None
        self._closed = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="qdrant")

    async def run(self, call: Call) -> Any:
        with unavailable():
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._call, call)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
            self._thread.shutdown(wait=False)

    def _call(self, call: Call) -> Any:
        if self._client is None:
            self._client = _open(self._path)
        return call(self._client)

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()


def connect(settings: Qdrant) -> Connection:
    """Connects, or opens the directory, at its first use. Without url and path: a server at its usual address.

    Raises: ConfigurationError.
    """
    if settings.path:
        return Local(settings.path)
    client = AsyncQdrantClient(
        url=settings.url or DEFAULT_URL,
        api_key=settings.api_key.get_secret_value() if settings.api_key else None,
        timeout=math.ceil(settings.timeout_seconds),
        check_compatibility=False,  # it would call the server at once, and block
        verify=trusting(settings.ca_file, variable(("qdrant", "ca_file"))) if settings.ca_file else True,
    )
    return Server(client)


@contextmanager
def unavailable() -> Iterator[None]:
    """Turns the client's and the local mode's errors into StoreUnavailable. Their text may quote content: left out."""
    try:
        yield
    except (ApiException, QdrantException, OSError, sqlite3.Error) as error:
        status = getattr(error, "status_code", None)
        problem = type(error).__name__ + (f" {status}" if status else "")
        raise StoreUnavailable(store=STORE, problem=problem) from error


def _open(path: Path) -> QdrantClient:
    try:
        return QdrantClient(path=str(path))
    except RuntimeError as error:
        raise StoreInUse(store=STORE) from error
