"""The composition root of `afterword serve`: opens and warms up the services, and builds the app."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import structlog
from aiokafka.errors import KafkaError
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from afterword.operating.erasing.eraser import Eraser
from afterword.operating.erasing.requests import ErasureRunner
from afterword.reading.memory import Memory
from afterword.serving import erasures, events, operating, reading, tools, writing
from afterword.serving.feed import Feed
from afterword.serving.page import app as page
from afterword.serving.page.finding import RecentMessages
from afterword.serving.page.live import LagReader
from afterword.serving.page.rendering import STATIC
from afterword.serving.page.visitor import Seal
from afterword.serving.principal import STREAMS_OF_A_KEY, Authenticator, KeyHolders, Nobody, Rates, Streams
from afterword.serving.problems import RESPONSES, ProblemDocument, fault_response, show_error
from afterword.serving.requests import BODIES, EncodedPaths
from afterword.serving.services import Services
from afterword.serving.writing import Outbox
from afterword.streams.errors import AfterwordError
from afterword.streams.settings import Serve, Settings
from afterword.streams.stores.opening import Stores, open_stores
from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.tracing import LAST_EXPORT_SECONDS, tracer_from
from afterword.streams.text.tokens import count_tokens
from afterword.streams.tls import verifying_context
from afterword.version import running_version
from afterword.writing.producer import Producer

ROLE = "server"
LOOPBACK_NAMES = ["127.0.0.1", "localhost", "[::1]", "::1"]
ROUTERS = (
    reading.router,
    writing.router,
    erasures.router,
    events.router,
    tools.router,
    operating.router,
    page.router,
)
BATCH_BYTES = 256 * 1024
"""Upper limit for a batch, except for a single larger message. With the client's default of 16 KiB, a request of 100
messages takes three batches, each of which waits for the previous one to be acknowledged."""
DESCRIPTION = "Long-term memory of chat conversations: messages in; context, episodes, recall and events out."
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    # no page of another site may load an answer, not even to learn whether something exists
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
UNMATCHED = "unmatched"

log = structlog.get_logger(__name__)
WARM_UP_SECONDS = 10.0
"""Time limit for warming up. After that the server is ready even if a backend did not answer."""
WARM_CONNECTIONS = 4
"""Number of concurrent reads, each on its own connection."""
NOBODY = "afterword/warm-up"
"""A conversation and a user that do not exist."""
QUESTION = "What was said on 1 May 2024?"
"""The first question that names a time takes half a second."""


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """Open what the routes use and start to warm it up, without waiting for unavailable servers.

    Raises: ConfigurationError.
    """
    async with AsyncExitStack() as closing:
        stores = await closing.enter_async_context(open_stores(settings))
        version = running_version()
        metrics = Metrics(ROLE, version)
        tracer = await closing.enter_async_context(tracer_from(os.environ, ROLE, version, LAST_EXPORT_SECONDS))
        memory = await closing.enter_async_context(Memory.from_settings(settings, metrics, tracer))
        outbox = Outbox(settings.kafka, lambda: Producer.from_settings(settings, max_batch_size=BATCH_BYTES))
        closing.push_async_callback(outbox.close)
        feed = Feed(settings.kafka, metrics, stores.episodes.versions)
        _run(closing, feed.run())
        runner = ErasureRunner(stores.erasures, stores.prepare_database, partial(Eraser.from_settings, settings))
        _run(closing, runner.run())
        yield Services(
            settings=settings,
            ping_database=stores.ping_database,
            usage=stores.episodes.usage,
            memory=memory,
            authenticator=authenticator(settings.serve, stores),
            rates=Rates(settings.serve.requests_per_minute),
            streams=Streams(0 if settings.serve.auth == "none" else STREAMS_OF_A_KEY),
            metrics=metrics,
            outbox=outbox,
            feed=feed,
            erasures=runner,
            warming=_run(closing, warm_up(memory, outbox)),
        )


def _run(closing: AsyncExitStack, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(work)

    async def stop() -> None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    closing.push_async_callback(stop)
    return task


def authenticator(settings: Serve, stores: Stores) -> Authenticator:
    """Return the configured authenticator. Raises: ConfigurationError."""
    match settings.auth:
        case "keys":
            return KeyHolders(stores.keys)
        case "jwt":
            from afterword.serving.tokens import IssuerKeys, TokenHolders  # imported here because few servers need it

            return TokenHolders(settings, IssuerKeys(str(settings.jwt_jwks_url), verifying_context()))
        case _:
            return Nobody()


def routes_only() -> FastAPI:
    """Build the application without the services behind it, which suffices for its OpenAPI document."""
    app = FastAPI(
        title="Afterword",
        description=DESCRIPTION,
        version=running_version(),
        docs_url=None,  # FastAPI's page loads scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
        responses=RESPONSES,
        generate_unique_id_function=lambda route: route.name,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    for router in ROUTERS:
        app.include_router(router)
    app.openapi = partial(openapi, app)  # type: ignore[method-assign]  # as the framework's documentation has it
    return app


def make_app(services: Services) -> FastAPI:
    """Build the application: routes, their services, and middleware."""
    settings = services.settings.serve
    app = routes_only()
    app.mount("/static", StaticFiles(directory=STATIC))
    app.state.services = services
    app.state.seal = Seal(settings.cookie_secret)
    app.state.lag_reader = LagReader(services.settings)
    app.state.recent_messages = RecentMessages(services.settings.kafka)
    for kind in (AfterwordError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, show_error)
    # the last middleware added is the outermost
    app.add_middleware(EncodedPaths)
    if settings.origins:
        methods = ["GET", "POST", "PATCH", "DELETE"]
        headers = ["Authorization", "Content-Type", "Last-Event-ID", *tools.HEADERS_OF_CLIENTS]
        app.add_middleware(CORSMiddleware, allow_origins=settings.origins, allow_methods=methods, allow_headers=headers)
    if settings.auth == "none":
        # otherwise a page of another site could have its name resolve to this address and read everything
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK_NAMES)
    app.add_middleware(AccessMiddleware, metrics=services.metrics, logged=settings.access_log)
    return app


def openapi(app: FastAPI) -> dict[str, Any]:
    """Build the OpenAPI document, including the models of bodies and problems."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        template = "#/components/schemas/{model}"
        models = [(model, "validation") for model in (*BODIES.values(), ProblemDocument)]
        _, made = models_json_schema(models, ref_template=template)  # type: ignore[arg-type]  # a list is invariant
        document["components"]["schemas"] = made["$defs"] | document["components"]["schemas"]
        app.openapi_schema = document
    return app.openapi_schema


class AccessMiddleware:
    """The outermost middleware. `logged` writes a log line for each request.

    Unexpected errors end here. If the answer has already begun, the server closes the connection.
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
                # a browser asks whether a file of the page has changed, and keeps nothing else
                headers.setdefault("Cache-Control", "no-cache" if "etag" in headers else "no-store")
            await send(message)

        try:
            await self._app(scope, receive, answer)
        except Exception as error:  # noqa: BLE001 – the wrapper around every route, because uvicorn would log the error's text
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
                milliseconds=round(seconds * 1000, 1),
            )


async def warm_up(memory: Memory, outbox: Outbox) -> None:
    """Do once what requests do: read a context, search, and connect to Kafka.

    Failures are only logged, because requests will report them.
    """

    async def warm(name: str, step: Awaitable[object]) -> None:
        try:
            async with asyncio.timeout(WARM_UP_SECONDS):
                await step
        except (AfterwordError, KafkaError, TimeoutError) as error:
            log.warning("warm_up_failed", stage="serve", step=name, error_type=type(error).__name__)

    await asyncio.gather(
        warm("tokens", asyncio.to_thread(count_tokens, NOBODY)),
        warm("context", asyncio.gather(*[memory.context(NOBODY) for _ in range(WARM_CONNECTIONS)])),
        warm("recall", memory.recall(QUESTION, user_id=NOBODY, tenant_id=None)),
        warm("messages", outbox.open()),
    )
