"""Liveness and readiness of one worker over HTTP.

`/livez` answers as long as the event loop runs and depends on nothing else, because a worker must not be restarted when
its broker is down. `/readyz` answers 200 when every named condition holds, else 503 with the reasons.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Self

import structlog
from aiohttp import web

log = structlog.get_logger(__name__)

STARTING = "starting"
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

    def __init__(self, readiness: Readiness, host: str, port: int, views: Mapping[str, View] | None = None) -> None:
        self.port = port
        self._host = host
        self._readiness = readiness
        app = web.Application()
        routes = {"/livez": self._livez, "/readyz": self._readyz, **(views or {})}
        app.add_routes([web.get(path, handler, allow_head=False) for path, handler in routes.items()])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)

    async def _livez(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "alive"})

    async def _readyz(self, _: web.Request) -> web.Response:
        reasons = self._readiness.reasons
        if not reasons:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "not_ready", "reasons": reasons}, status=503)

    async def __aenter__(self) -> Self:
        """Begin to serve. Raises: OSError if the address cannot be bound."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self.port).start()
        except OSError:
            await self._runner.cleanup()
            raise
        self.port = self._runner.addresses[0][1]
        log.info("health_server_started", host=self._host, port=self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
