"""The server: opens and warms up the services, builds the app, and runs it within limits that no client can exceed.

This is the composition root of `afterword serve`.
"""

import asyncio
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import cache, partial
from typing import Any

import h11
import structlog
import uvicorn
from aiokafka.errors import KafkaError
from anyio.lowlevel import checkpoint
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from afterword.operating.eraser import Eraser, ErasureRunner
from afterword.reading.memory import Memory
from afterword.serving import events, http_api, mcp_route, reading, tools, writing
from afterword.serving.feed import Feed
from afterword.serving.outbox import Outbox
from afterword.serving.page import chat, conversations, operating, people, visitor
from afterword.serving.page.conversations import LATEST_SECONDS, latest_conversations
from afterword.serving.page.operating import LAG_SECONDS, Counted, read_lag
from afterword.serving.page.rendering import STATIC
from afterword.serving.page.visitor import Seal
from afterword.serving.problems import FAILED, RESPONSES, problem_response, show_error
from afterword.serving.requests import Authenticator, KeyHolders, Nobody, Rates, Services, SharedRead, services_of
from afterword.streams.errors import AfterwordError, WorkerFailed
from afterword.streams.installed import running_version
from afterword.streams.settings import Serve, Settings
from afterword.streams.stores.opening import Stores, open_stores
from afterword.streams.telemetry.metrics import Metrics
from afterword.streams.telemetry.tracing import LAST_EXPORT_SECONDS, tracer_from
from afterword.streams.tls import verifying_context
from afterword.writing.producer import Producer
from afterword_text.tokens import count_tokens
from faust_eos.options import allocate_sparingly, return_freed_memory, spare_the_collector

ROLE = "server"
LOOPBACK_NAMES = ["127.0.0.1", "localhost", "[::1]", "::1"]
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
KEEP_ALIVE_SECONDS = 5
HEADER_SECONDS = 10.0
"""The head of a request must arrive within this time, which uvicorn does not limit."""
UNREAD_MILLISECONDS = 30_000
MOST_CONNECTIONS = 2000
"""Requests other than those for HEALTH get 503 if more connections than this are open."""
MOST_STRANGERS = 200
"""Upper limit for the connections of one address on which no valid key was sent."""
HEALTH = ("/livez", "/readyz")
SEND_BUFFER_BYTES = 128 * 1024
"""Bytes that the kernel buffers for a client that does not read. By default it buffers megabytes per client."""
SWITCH_SECONDS = 0.0001
"""A thread gives way to the event loop after this time, not after Python's 5 ms, for which a request may wait often."""
COLLECTED_AT = (1000, 10, 100)
"""Garbage is collected in portions that delay no request for long: one of 100,000 objects takes 40 ms."""
WARM_UP_SECONDS = 10.0
"""Time limit for warming up. After that the server starts even if a backend did not answer."""
NOBODY = "afterword/warm-up"
"""A conversation and a user that do not exist."""
QUESTION = "What was said on 1 May 2024?"
"""The first question that names a time takes half a second."""

log = structlog.get_logger(__name__)
router = APIRouter(tags=["operating"])


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """Open the routes' services, and warm them up.

    Raises: ConfigurationError.
    """
    async with AsyncExitStack() as closing:
        stores = await closing.enter_async_context(open_stores(settings))
        version = running_version()
        metrics = Metrics(ROLE, version)
        tracer = await closing.enter_async_context(tracer_from(os.environ, ROLE, version, LAST_EXPORT_SECONDS))
        memory = await closing.enter_async_context(Memory.from_settings(settings, tracer))
        outbox = Outbox(settings.kafka, lambda: Producer.from_settings(settings, max_batch_size=BATCH_BYTES))
        closing.push_async_callback(outbox.aclose)
        feed = Feed(settings.kafka, metrics, stores.episodes.lookup)
        _run(closing, feed.run())
        runner = ErasureRunner(stores.erasures, stores.prepare_database, partial(Eraser.from_settings, settings))
        _run(closing, runner.run())
        await warm_up(memory, outbox)
        yield Services(
            settings=settings,
            ping_database=stores.ping_database,
            usage=stores.episodes.usage,
            count_messages=stores.messages.total,
            memory=memory,
            authenticator=authenticator(settings.serve, stores),
            rates=Rates(settings.serve.requests_per_minute),
            sessions=stores.sessions,
            metrics=metrics,
            outbox=outbox,
            feed=feed,
            erasures=runner,
        )


def _run(closing: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)

    async def stop() -> None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    closing.push_async_callback(stop)


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


@router.get("/livez")
async def livez() -> dict[str, str]:
    """Answer 200 as long as the process is running."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Answer 200 if the database answers, else 503."""
    if await services_of(request).database_answers():
        return JSONResponse({"status": "ok", "reasons": {}})
    return JSONResponse({"status": "unavailable", "reasons": {"stores": "cannot be reached"}}, 503)


@router.get("/metrics", response_class=PlainTextResponse)
async def show_metrics(request: Request) -> Response:
    """Return the metrics of this process for Prometheus."""
    return Response(services_of(request).metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


SCREENS = (visitor, conversations, people, chat, operating)
ROUTERS = (
    reading.router,
    writing.router,
    writing.erasures,
    events.router,
    mcp_route.router,
    router,
    *(screen.router for screen in SCREENS),
)


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
        http_api.describe_bodies(router.routes)
        app.include_router(router)
    app.openapi = partial(http_api.openapi, app)  # type: ignore[method-assign]  # as the framework's documentation has it
    return app


def make_app(services: Services) -> FastAPI:
    """Build the application: routes, their services, and middleware."""
    settings = services.settings.serve
    app = routes_only()
    app.mount("/static", StaticFiles(directory=STATIC))
    if settings.docs:
        app.include_router(http_api.router)
    app.include_router(visitor.anything_else)
    app.state.services = services
    app.state.seal = Seal(settings.cookie_secret)
    kafka, counted = services.settings.kafka, Counted()
    app.state.lag = SharedRead(kafka, lambda _: read_lag(services.settings, counted), LAG_SECONDS)
    app.state.latest = SharedRead(kafka, partial(latest_conversations, kafka), LATEST_SECONDS)
    for kind in (AfterwordError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, show_error)
    # the last middleware added is the outermost
    if settings.origins:
        methods = ["GET", "POST", "PATCH", "DELETE"]
        headers = ["Authorization", "Content-Type", "Last-Event-ID", *tools.HEADERS_OF_CLIENTS]
        app.add_middleware(CORSMiddleware, allow_origins=settings.origins, allow_methods=methods, allow_headers=headers)
    if settings.auth == "none":
        # otherwise a page of another site could have its name resolve to this address and read everything
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK_NAMES)
    app.add_middleware(OutermostMiddleware, metrics=services.metrics)
    return app


class OutermostMiddleware:
    """Refuses requests while too many are open, adds headers, counts requests, and answers unexpected errors.

    If the answer has already begun, the server closes the connection.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "raw_path" in scope:  # servers decode paths, including `%2F`, before routes are matched
            scope["path"] = scope["raw_path"].decode("latin-1")
        connection: BoundedHttp | None = scope.get("state", {}).get("connection")
        app = (connection and connection.refusal(scope)) or self._app
        began = time.perf_counter()
        status: int | None = None

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                # browsers check whether the page's files have changed, and store nothing else
                headers.setdefault("Cache-Control", "no-cache" if "etag" in headers else "no-store")
            await send(message)

        try:
            await app(scope, receive, answer)
        except Exception as error:  # noqa: BLE001 – the wrapper around every route, because uvicorn would log the error's text
            log.error("request_failed", stage="serve", error_type=type(error).__name__)
            if status is None:
                await problem_response(500, "internal_server_error", FAILED)(scope, receive, answer)
        finally:
            route = getattr(scope.get("route"), "path", UNMATCHED)
            self._metrics.requests.labels(route, str(status or 500)).inc()
            self._metrics.request_seconds.labels(route).observe(time.perf_counter() - began)


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
        warm("context", memory.context(NOBODY)),
        warm("recall", memory.recall(QUESTION, user_id=NOBODY, tenant_id=None)),
        warm("messages", outbox.open()),
        warm("streams", checkpoint()),  # loads a part of AnyIO
    )


class BoundedHttp(H11Protocol):
    """Closes a connection if the head of a request, or the rest of one already answered, does not arrive in time.

    uvicorn's own timer, which starts after an answer, stops at the next byte. Connections of an address that has
    MOST_STRANGERS without a valid key are closed, too. A trusted proxy's connections carry requests of many addresses,
    so there each request counts while it is answered.
    """

    stranger: str | None = None
    """The client's address until `admit` has seen a valid key on the connection."""
    is_of_proxy = False
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.app_state = {**self.app_state, "connection": self}
        address = self.client[0] if self.client else ""
        self.is_of_proxy = self.config.proxy_headers and address in trusted_hosts(str(self.config.forwarded_allow_ips))
        if not self.is_of_proxy and not self.greet(address):
            transport.abort()
            return
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # only Linux can give up on a client that does not read
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MILLISECONDS)
        self._limit_waiting()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.is_of_proxy:
            self.stranger = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer:
            self._timer.cancel()

    def greet(self, address: str) -> bool:
        """Take the client for a stranger at this address, and return whether there is room for one."""
        strangers = sum(
            connection.stranger == address for connection in self.connections if isinstance(connection, BoundedHttp)
        )
        self.stranger = address if strangers < MOST_STRANGERS else None
        return self.stranger is not None

    def refusal(self, scope: Scope) -> Response | None:
        """Return the answer while too many connections are open, or too many requests of a proxy's strangers."""
        if scope["path"] in HEALTH:
            return None
        if len(self.connections) > MOST_CONNECTIONS:
            return problem_response(503, "too_many_connections", "too many connections are open")
        if self.is_of_proxy and not self.greet(scope["client"][0]):
            return problem_response(429, "too_many_connections", "too many requests without a valid key are open")
        return None

    def _limit_waiting(self) -> None:
        """Start the timer when it is the client's turn, that is, no request is unanswered, and stop it otherwise."""
        is_waiting = self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE
        if is_waiting and not self._timer:
            self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)
        elif self._timer and not is_waiting:
            self._timer.cancel()
            self._timer = None


@cache
def trusted_hosts(proxies: str) -> Any:
    """Return the container of addresses whose X-Forwarded-For uvicorn's middleware trusts."""
    no_app: Any = None
    return ProxyHeadersMiddleware(no_app, proxies).trusted_hosts


class HttpServer(uvicorn.Server):
    """Serves until the event is set. uvicorn's own server handles signals, which belong to the process."""

    def __init__(self, config: uvicorn.Config, stop: asyncio.Event) -> None:
        super().__init__(config)
        self._stop = stop

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        return self._stop.is_set() or await super().on_tick(counter)


async def run_server(settings: Settings, started: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; a second one ends the process at once. Raises: the errors of `serve_until`."""
    allocate_sparingly()
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def asked_to_stop(number: int) -> None:
        loop.remove_signal_handler(number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked_to_stop, number)
    await serve_until(stop, settings, started)


async def serve_until(stop: asyncio.Event, settings: Settings, started: Callable[[str], None]) -> None:
    """Serve until the event is set. `started` is called with the address.

    Raises: ConfigurationError; WorkerFailed, for example if the port is in use.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # often 1,024, which is less than MOST_CONNECTIONS
    with _listening(settings) as listener:
        async with open_services(settings) as services:
            # exempt what is loaded from garbage collection, which would stop every request for 100 ms
            spare_the_collector(COLLECTED_AT)
            return_freed_memory()
            host, port = listener.getsockname()[:2]
            address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            log.info("server_started", stage="serve", address=address, auth=settings.serve.auth)
            started(address)
            await HttpServer(configuration(settings, make_app(services)), stop).serve([listener])


def configuration(settings: Settings, app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=BoundedHttp,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.serve.trusted_proxies),
        forwarded_allow_ips=settings.serve.trusted_proxies,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, int(settings.drain_seconds)),
    )


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    host, port = settings.serve.host, settings.serve.port
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # connections inherit it
        try:
            listener.bind(address)
        except OSError as error:
            remedy = "choose another with --port or AFTERWORD_SERVE__PORT"
            raise WorkerFailed(problem=f"{host}:{port}: {error.strerror}; {remedy}") from error
        listener.listen()
        yield listener
