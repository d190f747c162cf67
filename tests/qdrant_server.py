"""Stand-in for Qdrant over HTTP, answered by the client's own local mode: real searches and filters, but no
server of Qdrant's. Where there is no real one: see tests/qdrant.py."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from pydantic import TypeAdapter
from qdrant_client import QdrantClient
from qdrant_client.http import models

from afterword.embedded.claims import HOST, free_ports

LARGEST_REQUEST_BYTES = 64 << 20
LONG_SECONDS = 30.0

Handler = Callable[[web.Request], Any]
Answer = Callable[[QdrantClient, str, bytes], Any]
"""Function of the client, the collection's name and the request's body."""


class QdrantServer:
    """Listens on `port`, which stays the same."""

    def __init__(self, version: str = "1.17.1") -> None:
        self.port = 0
        self.version = version
        self.requests: list[str] = []
        """Method and path of each."""
        self._answer: int | str | None = None
        self._client = QdrantClient(":memory:")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="qdrant-server")
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @asynccontextmanager
    async def killed(self) -> AsyncIterator[None]:
        """Nobody listens inside the block; what was acknowledged stays."""
        await self._close()
        yield
        await self._listen()

    @contextmanager
    def answering(self, answer: int | str) -> Iterator[None]:
        """Every request inside the block is answered with this status, or not within LONG_SECONDS."""
        self._answer = answer
        yield
        self._answer = None

    async def __aenter__(self) -> Self:
        self.port = free_ports(1)[0]  # none that a client could be given while nobody listens
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
        for method, path, answer in ROUTES:
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
            if self._answer is not None:
                return await _refusal(self._answer)
            try:
                result = await asyncio.get_running_loop().run_in_executor(
                    self._thread, answer, self._client, name, body
                )
            except ValueError as error:  # what the local mode says to a collection that it has not, or has already
                status = 409 if "already exists" in str(error) else 404
                return _response({"status": {"error": str(error)}}, status)
            return _response({"result": result, "status": "ok", "time": 0.0})

        return handle


async def _refusal(answer: int | str) -> web.Response:
    if isinstance(answer, int):
        return _response({"status": {"error": "refused"}}, answer)
    await asyncio.sleep(LONG_SECONDS)
    return _response({}, 504)


def _response(content: Any, status: int = 200) -> web.Response:
    return web.Response(body=_ANY.dump_json(content), content_type="application/json", status=status)


_ANY = TypeAdapter(Any)


def _collections(client: QdrantClient, name: str, body: bytes) -> Any:
    return client.get_collections()


def _exists(client: QdrantClient, name: str, body: bytes) -> Any:
    return {"exists": client.collection_exists(name)}


def _collection(client: QdrantClient, name: str, body: bytes) -> Any:
    return client.get_collection(name)


def _create(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = models.CreateCollection.model_validate_json(body)
    return client.create_collection(
        name,
        vectors_config=wanted.vectors or {},  # type: ignore[arg-type]  # the request's type is wider than the method's
        sparse_vectors_config=wanted.sparse_vectors,
        metadata=wanted.metadata,
    )


def _delete(client: QdrantClient, name: str, body: bytes) -> Any:
    return client.delete_collection(name)


def _create_index(client: QdrantClient, name: str, body: bytes) -> Any:
    """The local mode has none, and finds everything all the same."""
    return {"operation_id": 0, "status": "completed"}


def _upsert(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = models.PointsList.model_validate_json(body)
    return client.upsert(name, points=wanted.points, update_filter=wanted.update_filter)


def _points(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = models.PointRequest.model_validate_json(body)
    return client.retrieve(name, ids=wanted.ids, with_payload=wanted.with_payload or False)


def _scroll(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = models.ScrollRequest.model_validate_json(body)
    points, following = client.scroll(
        name,
        scroll_filter=wanted.filter,
        limit=wanted.limit or 10,
        offset=wanted.offset,
        with_payload=wanted.with_payload or False,
    )
    return {"points": points, "next_page_offset": following}


def _query(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = models.QueryRequest.model_validate_json(body)
    return client.query_points(
        name,
        query=wanted.query,
        prefetch=wanted.prefetch,
        query_filter=wanted.filter,
        using=wanted.using,
        limit=wanted.limit or 10,
        with_payload=wanted.with_payload or False,
    )


def _query_batch(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = models.QueryRequestBatch.model_validate_json(body)
    return client.query_batch_points(name, wanted.searches)


_ONE = "/collections/{collection}"
ROUTES: tuple[tuple[str, str, Answer], ...] = (
    ("GET", "/collections", _collections),
    ("GET", _ONE + "/exists", _exists),
    ("GET", _ONE, _collection),
    ("PUT", _ONE, _create),
    ("DELETE", _ONE, _delete),
    ("PUT", _ONE + "/index", _create_index),
    ("PUT", _ONE + "/points", _upsert),
    ("POST", _ONE + "/points", _points),
    ("POST", _ONE + "/points/scroll", _scroll),
    ("POST", _ONE + "/points/query", _query),
    ("POST", _ONE + "/points/query/batch", _query_batch),
)
