"""Small HTTP servers for tests: any handler, and an endpoint that gives out tokens."""

import asyncio
import base64
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

from aiohttp import BasicAuth, web

CLIENT_ID, CLIENT_SECRET = "afterword:client", "s%cret+7"


@dataclass
class TokenEndpoint:
    """Gives each client that knows the secret a token without a signature, as Kafka's defaults take for tests."""

    url: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)
    life_seconds: float = 300
    subject: str = "afterword"
    answer: Callable[[], web.Response] | None = None

    async def give(self, request: web.Request) -> web.Response:
        auth = BasicAuth.decode(request.headers["authorization"])
        form = dict(await request.post())
        self.asked.append({name: str(value) for name, value in form.items()})
        if self.answer:
            return self.answer()
        if (unquote_plus(auth.login), unquote_plus(auth.password)) != (CLIENT_ID, CLIENT_SECRET):
            return web.json_response({"error": "invalid_client", "error_description": auth.password}, status=401)
        return web.json_response({"access_token": self._token(), "expires_in": self.life_seconds})

    def _token(self) -> str:
        now = time.time()
        claims = {"sub": self.subject, "iat": now - 1, "exp": now + self.life_seconds}
        return f"{_part({'alg': 'none'})}.{_part(claims)}."


def _part(claims: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")


@asynccontextmanager
async def serving(handler: Any, method: str, path: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Run a server with one route on this machine, and yield its URL."""
    app = web.Application(client_max_size=8_000_000)
    app.router.add_route(method, path, handler)
    async with running_app(app, tls) as url:
        yield url


@asynccontextmanager
async def running_app(app: web.Application, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Run a server on this machine, and yield its URL."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def silent() -> AsyncIterator[int]:
    """Run a server that accepts every connection and never answers, and yield its port."""

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while await reader.read(4096):
                pass
        writer.close()

    server = await asyncio.start_server(read, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
