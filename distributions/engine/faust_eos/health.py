"""Liveness and readiness of one worker over HTTP.

`/livez` answers as long as the event loop runs and depends on nothing else, because a worker must not be restarted when
its broker is down. `/readyz` answers 200 when every named condition holds, else 503 with the reasons.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

log = structlog.get_logger(__name__)

STARTING = "starting"
MAX_LINE_BYTES = 4096
"""Longest request line or header that is accepted; a probe sends about 100 bytes."""
CONNECTION_SECONDS = 30.0
"""Lifetime of a connection, so that nobody keeps one open by sending a request byte by byte."""
SHUTDOWN_SECONDS = 1.0

View = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Readiness:
    """Named conditions; the worker is ready when all of them hold.

    The conditions named at the start do not hold until `ready` is called for them.
    """

    def __init__(self, *conditions: str) -> None:
        self._reasons: dict[str, str | None] = dict.fromkeys(conditions, STARTING)

    def ready(self, condition: str) -> None:
        self._reasons[condition] = None

    def not_ready(self, condition: str, reason: str) -> None:
        """Mark the condition as not met.

        `reason` is a stable snake_case word, shown to anyone who can reach the port.
        """
        self._reasons[condition] = reason

    @property
    def reasons(self) -> dict[str, str]:
        """Reasons why the worker is not ready, by condition; empty if it is ready."""
        return {condition: reason for condition, reason in self._reasons.items() if reason is not None}


class HealthServer:
    """Serves liveness, readiness and the worker's `views`, by path.

    `port` is the port in use, even if 0 was requested.
    """

    def __init__(
        self,
        readiness: Readiness,
        host: str,
        port: int,
        views: Mapping[str, View] | None = None,
        connection_seconds: float = CONNECTION_SECONDS,
    ) -> None:
        self.port = port
        self._host = host
        self._connection_seconds = connection_seconds
        self._readiness = readiness
        self._listening: asyncio.Server
        app = web.Application(middlewares=[without_body])
        routes = {"/livez": self._livez, "/readyz": self._readyz, **(views or {})}
        app.add_routes([web.get(path, handler, allow_head=False) for path, handler in routes.items()])
        self._runner: Any = web.AppRunner(
            app,
            access_log=None,
            logger=request_logger(),
            shutdown_timeout=SHUTDOWN_SECONDS,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
        )

    async def _livez(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "alive"})

    async def _readyz(self, _: web.Request) -> web.Response:
        reasons = self._readiness.reasons
        if not reasons:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "not_ready", "reasons": reasons}, status=503)

    async def start(self) -> None:
        """Begin to serve. Raises: OSError if the address cannot be bound."""
        await self._runner.setup()
        try:
            self._listening = await asyncio.get_running_loop().create_server(self._connected, self._host, self.port)
        except OSError:
            await self._runner.cleanup()
            raise
        self.port = self._listening.sockets[0].getsockname()[1]
        log.info("health_server_started", host=self._host, port=self.port)

    async def stop(self) -> None:
        self._listening.close()
        await self._runner.cleanup()

    def _connected(self) -> asyncio.Protocol:
        connection: Any = self._runner.server()

        def cut() -> None:
            if connection.transport is not None:
                connection.transport.abort()

        asyncio.get_running_loop().call_later(self._connection_seconds, cut)
        return connection  # type: ignore[no-any-return]  # aiohttp's handler is one

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def request_logger() -> logging.Logger:
    """Return a logger that drops reports of requests that are not HTTP, with which anybody could fill the log."""
    logger = logging.getLogger(f"{__name__}.requests")
    logger.addFilter(is_ours)
    return logger


def is_ours(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


@web.middleware
async def without_body(request: web.Request, handler: View) -> web.StreamResponse:
    """Refuse a request with a body unread, and close its connection: probes have none, and it may be large."""
    if request.can_read_body:
        refusal = web.Response(status=413)
        refusal.force_close()
        return refusal
    return await handler(request)
