"""Stand-in for a Qdrant server, answered by qdrant_answers.py; see tests/qdrant.py for when it is used."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from qdrant_client import QdrantClient

from afterword.embedded.claims import HOST, free_ports
from tests.qdrant_answers import LARGEST_REQUEST_BYTES, ROUTES, Answer, answered, response

LONG_SECONDS = 30.0

Handler = Callable[[web.Request], Any]


class QdrantServer:
    """A stand-in server, which always listens on the same port."""

    def __init__(self, version: str = "1.17.1", routes: Sequence[tuple[str, str, Answer]] = ROUTES) -> None:
        self.port = 0
        self.version = version
        self.requests: list[str] = []
        """Method and path of each request."""
        self.bodies: dict[str, Any] = {}
        """Body of the last request of each method and path that had one, without what was null."""
        self._answer: int | str | None = None
        self.client = QdrantClient(":memory:")
        self._routes = routes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="qdrant-server")
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @asynccontextmanager
    async def killed(self) -> AsyncIterator[None]:
        """Keep the server killed inside the block; acknowledged writes stay."""
        await self._close()
        yield
        await self._listen()

    @contextmanager
    def answering(self, answer: int | str) -> Iterator[None]:
        """Answer every request inside the block with this status, or not within LONG_SECONDS."""
        self._answer = answer
        yield
        self._answer = None

    async def __aenter__(self) -> Self:
        self.port = free_ports(1)[0]  # no port that a client could be given while nobody listens
        await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()
        self._thread.shutdown()

    async def _listen(self) -> None:
        app = web.Application(client_max_size=LARGEST_REQUEST_BYTES)
        app.router.add_get("/", self._about)
        for method, path, answer in self._routes:
            app.router.add_route(method, path, self._handler(answer))
        self._runner = web.AppRunner(app, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, self.port).start()

    async def _close(self) -> None:
        if self._runner:
            await self._runner.cleanup()

    async def _about(self, request: web.Request) -> web.Response:
        return web.json_response({"title": "stand-in", "version": self.version})

    def _handler(self, answer: Answer) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            body, name = await request.read(), request.match_info.get("collection", "")
            self.requests.append(f"{request.method} {request.path}")
            if body:
                self.bodies[self.requests[-1]] = without_null(json.loads(body))
            if self._answer is not None:
                return await _refusal(self._answer)
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, answered, answer, self.client, name, body
            )

        return handle


def without_null(body: Any) -> Any:
    if isinstance(body, dict):
        return {name: without_null(value) for name, value in body.items() if value is not None}
    return body


async def _refusal(answer: int | str) -> web.Response:
    if isinstance(answer, int):
        return response({"status": {"error": "refused"}}, answer)
    await asyncio.sleep(LONG_SECONDS)
    return response({}, 504)
