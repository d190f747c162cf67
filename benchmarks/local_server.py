"""A server of HTTP on a free port of 127.0.0.1, for what stands in for a server of others."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Self

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.Response]]


class LocalServer:
    """Answers POST requests while it is entered."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        """`handlers`: by path."""
        self._handlers = handlers

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_routes([web.post(path, handler) for path, handler in self._handlers.items()])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"
