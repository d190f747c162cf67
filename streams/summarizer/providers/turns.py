"""Turns at a server: so many requests at a time, each with an HTTP client to itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx


class Turns:
    """A client for each of `count` turns, made when it is needed.

    Not one client for all: httpx looks at every connection of a client at the beginning and at the end of each
    request. With 128 in use that costs 9 ms of CPU for a request, with clients apart 1 ms (docs/performance.md).
    """

    def __init__(self, count: int, make: Callable[[], httpx.AsyncClient]) -> None:
        """Raises: what `make` does, for the first client is made at once."""
        self._make = make
        self._clients = [make()]
        # the one that was used last is the next: its connection is open, and no more are than are needed
        self._free = asyncio.LifoQueue[httpx.AsyncClient | None]()
        for _ in range(count - 1):
            self._free.put_nowait(None)
        self._free.put_nowait(self._clients[0])

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[httpx.AsyncClient]:
        """Waits for one, first come, first served."""
        client = await self._free.get()
        try:
            client = client or self._another()
            yield client
        finally:
            self._free.put_nowait(client)

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()

    def _another(self) -> httpx.AsyncClient:
        client = self._make()
        self._clients.append(client)
        return client
