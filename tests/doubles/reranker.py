"""Rerankers: one that plays a script, and an HTTP server on 127.0.0.1 that ranks by shared words."""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple

from aiohttp import web

from afterword.reading.reranking import Reranking
from afterword.streams.errors import ProviderError
from afterword.streams.settings import RerankerSettings
from tests.endpoints import serving

Form = Literal["cohere", "voyage"]
FORMS: tuple[Form, ...] = ("cohere", "voyage")
"""Forms of answers. Jina's and vLLM's are Cohere's."""
MODEL = "a-reranker"
KEY = "key-of-the-reranker"


def shared_words(query: str, document: str) -> float:
    """Return the share of the query's words that a document has, from 0 to 1."""
    wanted, words = (set(re.findall(r"\w+", text.lower())) for text in (query, document))
    return len(wanted & words) / len(wanted) if wanted else 0.0


class AskedOrder(NamedTuple):
    query: str
    texts: Sequence[str]


class ScriptedReranking(Reranking):
    """Returns or raises the next step of its script; after the last one, it reverses the texts."""

    def __init__(
        self, script: Sequence[list[int] | ProviderError] = (), timeout_seconds: float = 2.0, **options: Any
    ) -> None:
        settings = RerankerSettings(base_url="http://127.0.0.1:9", timeout_seconds=timeout_seconds)
        super().__init__(settings, **options)
        self.script = deque(script)
        self.delay_seconds = 0.0
        self.questions: list[AskedOrder] = []
        self.asked = asyncio.Event()

    async def ask(self, query: str, texts: Sequence[str]) -> list[int]:
        """Return the next order. Raises: the next step of the script if it is a ProviderError."""
        self.questions.append(AskedOrder(query, texts))
        self.asked.set()
        await asyncio.sleep(self.delay_seconds)
        step = self.script.popleft() if self.script else [*reversed(range(len(texts)))]
        if isinstance(step, ProviderError):
            raise step
        return step


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RerankServer:
    """Records requests in order; `answer` replaces the ranking and may be changed at any time."""

    def __init__(self, form: Form = "cohere") -> None:
        self.form = form
        self.answer: Answer | None = None
        self.requests: list[dict[str, Any]] = []
        self.url = ""

    async def rerank(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        if self.answer is not None:
            return await self.answer(request)
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return web.json_response({"message": "invalid api token"}, status=401)
        return web.json_response(_ranking(self.form, body))


def _ranking(form: Form, body: dict[str, Any]) -> dict[str, Any]:
    scores = {index: shared_words(body["query"], text) for index, text in enumerate(body["documents"])}
    best = sorted(scores, key=lambda index: -scores[index])[: body["top_n"]]
    assert body["model"] == MODEL
    if form == "voyage":
        data = [{"index": index, "relevance_score": scores[index]} for index in best]
        return {"object": "list", "data": data, "model": MODEL, "usage": {"total_tokens": 9}}
    shown = [
        {"index": index, "relevance_score": scores[index], "document": {"text": body["documents"][index]}}
        for index in best
    ]
    return {"id": "a", "results": shown, "meta": {"billed_units": {"search_units": 1}}}


def scores(*given: tuple[object, object]) -> bytes:
    """Return a ranking in Cohere's format, with places and scores as JSON values."""
    results = ", ".join(f'{{"index": {index}, "relevance_score": {score}}}' for index, score in given)
    return f'{{"results": [{results}]}}'.encode()


@asynccontextmanager
async def reranking(form: Form = "cohere") -> AsyncIterator[RerankServer]:
    server = RerankServer(form)
    async with serving(server.rerank, "POST", "/v1/rerank") as url:
        server.url = f"{url}/v1"
        yield server
