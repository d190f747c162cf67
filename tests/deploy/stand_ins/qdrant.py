"""A stand-in for Qdrant where no registry can be reached: tests/qdrant_answers.py in our own image."""

from collections.abc import Callable
from typing import Any

from aiohttp import web
from qdrant_client import QdrantClient

from tests.qdrant_answers import LARGEST_REQUEST_BYTES, ROUTES, Answer, answered, response

PORT = 6333
CLIENT = QdrantClient(":memory:")


def handler(answer: Answer) -> Callable[[web.Request], Any]:
    async def handle(request: web.Request) -> web.Response:
        return answered(answer, CLIENT, request.match_info.get("collection", ""), await request.read())

    return handle


async def about(_: web.Request) -> web.Response:
    return response({"title": "stand-in", "version": "1.17.1"})


app = web.Application(client_max_size=LARGEST_REQUEST_BYTES)
app.router.add_get("/", about)
app.router.add_get("/readyz", about)
for method, path, answer in ROUTES:
    app.router.add_route(method, path, handler(answer))
web.run_app(app, port=PORT)
