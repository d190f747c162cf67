"""Counting and logging of requests, by route and never with content; the headers of every answer, and faults."""

import time

import structlog
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from afterword.serving.problems import fault_response
from afterword.streams.telemetry import Metrics

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
NO_STORE = "no-store"
UNMATCHED = "unmatched"

log = structlog.get_logger(__name__)


class AccessMiddleware:
    """Middleware around everything else. `logged`: write a line for each request.

    An error that nobody foresaw ends here. After an answer has begun, the server ends the connection.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, logged: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._logged = logged

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status: int | None = None
        scope.setdefault("state", {})

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", NO_STORE)
            await send(message)

        try:
            await self._app(scope, receive, answer)
        except Exception as error:  # noqa: BLE001 – the wrapper around every route: uvicorn would log the error's text
            log.error("request_failed", stage="serve", error_type=type(error).__name__)
            if status is None:
                await fault_response()(scope, receive, answer)
        finally:
            self._note(scope, 500 if status is None else status, time.perf_counter() - began)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", UNMATCHED)
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        if self._logged:
            state = scope["state"]
            log.info(
                "request_served",
                stage="serve",
                key_id=state.get("key_id"),
                method=scope["method"],
                route=route,
                status=status,
                count=state.get("count"),
                milliseconds=round(seconds * 1000, 1),
            )
