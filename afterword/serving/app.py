"""The composition root of `afterword serve`: opens what the routes use, and puts the application together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from afterword.erasing.eraser import Eraser
from afterword.erasing.requests import ErasureRunner
from afterword.memory import Memory
from afterword.producer import Producer
from afterword.serving import erasures, events, manual, mcp, operating, reading, writing
from afterword.serving.access import AccessMiddleware
from afterword.serving.bodies import BODIES
from afterword.serving.feed import Feed
from afterword.serving.keys import KeyHolders
from afterword.serving.page import app as page
from afterword.serving.page.arriving import RecentMessages
from afterword.serving.page.live import LagReader
from afterword.serving.page.visitor import Seal
from afterword.serving.paths import EncodedPaths
from afterword.serving.principal import Authenticator, Nobody
from afterword.serving.problems import RESPONSES, ProblemDocument, add_handlers
from afterword.serving.rates import STREAMS_OF_A_KEY, Rates, Streams
from afterword.serving.sending import Outbox
from afterword.serving.services import Services
from afterword.serving.tokens import token_holders
from afterword.serving.warming import warm_up
from afterword.streams.settings import Settings
from afterword.streams.stores.opening import Stores, open_stores
from afterword.streams.telemetry import Metrics
from afterword.version import running_version

ROLE = "server"
LOOPBACK_NAMES = ["127.0.0.1", "localhost", "[::1]", "::1"]
ROUTERS = (
    reading.router,
    writing.router,
    erasures.router,
    events.router,
    mcp.router,
    operating.router,
    manual.router,
    page.router,
)
BATCH_BYTES = 256 * 1024
"""Most bytes of a batch, a single larger message aside. With the client's 16 KiB a request of 100 messages is three
batches, each of which waits for the acknowledgement of the one before."""
DESCRIPTION = "Long-term memory of chat conversations: messages in; context, episodes, recall and events out."


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """Open what the routes use, and begin to warm it up; nothing that is away is waited for.

    Raises: ConfigurationError.
    """
    async with AsyncExitStack() as closing:
        stores = await closing.enter_async_context(open_stores(settings))
        metrics = Metrics(ROLE, running_version())
        memory = await closing.enter_async_context(Memory.from_settings(settings, metrics))
        outbox = Outbox(settings.kafka, lambda: Producer.from_settings(settings, max_batch_size=BATCH_BYTES))
        closing.push_async_callback(outbox.close)
        feed = Feed(settings.kafka, metrics, stores.episodes.versions)
        closing.push_async_callback(_stopped, asyncio.create_task(feed.run()))
        runner = ErasureRunner(stores.erasures, stores.prepare_database, partial(Eraser.from_settings, settings))
        closing.push_async_callback(_stopped, asyncio.create_task(runner.run()))
        warming = asyncio.create_task(warm_up(memory, outbox))
        closing.push_async_callback(_stopped, warming)
        yield Services(
            settings=settings,
            ping_database=stores.ping_database,
            memory=memory,
            authenticator=authenticator(settings, stores),
            rates=Rates(settings.serve.requests_per_minute),
            streams=Streams(0 if settings.serve.auth == "none" else STREAMS_OF_A_KEY),
            metrics=metrics,
            outbox=outbox,
            feed=feed,
            erasures=runner,
            warming=warming,
        )


async def _stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def authenticator(settings: Settings, stores: Stores) -> Authenticator:
    """The configured one. Raises: ConfigurationError."""
    match settings.serve.auth:
        case "keys":
            return KeyHolders(stores.keys)
        case "jwt":
            return token_holders(settings.serve)
        case _:
            return Nobody()


def routes_only() -> FastAPI:
    """The application without what its routes use: enough for its OpenAPI document."""
    app = FastAPI(
        title="Afterword",
        description=DESCRIPTION,
        version=running_version(),
        docs_url=None,  # its page loads scripts from elsewhere: `manual.py` has ours
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
    """Put routes, what they use, and middleware together."""
    settings = services.settings.serve
    app = routes_only()
    app.state.services = services
    app.state.seal = Seal(settings.cookie_secret)
    app.state.lag_reader = LagReader(services.settings.kafka)
    app.state.recent_messages = RecentMessages(services.settings.kafka)
    add_handlers(app)
    # the last one added is the outermost
    app.add_middleware(EncodedPaths)
    if settings.origins:
        methods = ["GET", "POST", "PATCH", "DELETE"]
        headers = ["Authorization", "Content-Type", "Last-Event-ID", *mcp.HEADERS_OF_CLIENTS]
        app.add_middleware(CORSMiddleware, allow_origins=settings.origins, allow_methods=methods, allow_headers=headers)
    if settings.auth == "none":
        # a page of another site could else have its name resolve to this address, and read everything
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK_NAMES)
    app.add_middleware(AccessMiddleware, metrics=services.metrics, logged=settings.access_log)
    return app


def openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the models of bodies and problems."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        template = "#/components/schemas/{model}"
        models = [(model, "validation") for model in (*BODIES.values(), ProblemDocument)]
        _, made = models_json_schema(models, ref_template=template)  # type: ignore[arg-type]  # a list is invariant
        document["components"]["schemas"] = made["$defs"] | document["components"]["schemas"]
        app.openapi_schema = document
    return app.openapi_schema
