from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from pydantic import SecretStr

from afterword.streams.errors import ConfigurationError, StoreUnavailable
from afterword.streams.settings import EmbedderSettings, Redaction
from afterword.streams.summarizer.embedders import VECTOR_CHARACTERS, embed_messages, make_embedder
from tests.endpoints import serving

pytestmark = pytest.mark.nightly

ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"data": [{"embedding": [0.5, 1]}]},
    "/api/embed": {"embeddings": [[0.5, 1]]},
}
SERVERS = [("openai", "/v1"), ("ollama", "")]


class EmbeddingServer:
    """Speaks both protocols. `script` holds statuses and bodies that precede the good answer."""

    def __init__(self) -> None:
        self.script: deque[tuple[int, dict[str, Any]]] = deque()
        self.requests: list[tuple[str, Any, str | None]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append((request.path, await request.json(), request.headers.get("authorization")))
        status, body = self.script.popleft() if self.script else (200, ANSWERS[request.path])
        return web.json_response(body, status=status)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[EmbeddingServer]:
    started = EmbeddingServer()
    async with serving(started.answer, "POST", "/{path:.*}") as started.url:
        yield started


async def embed(provider: str, url: str, text: str = "A flight.", **fields: Any) -> list[float] | None:
    settings = EmbedderSettings(provider=provider, base_url=url, model="m", **fields)
    embedder = make_embedder(settings, Redaction())
    assert embedder is not None
    assert embedder.model == settings.vectors_model == "m"
    try:
        return (await embedder.embed([text]))[0]
    finally:
        await embedder.close()


@pytest.mark.parametrize(("provider", "base"), SERVERS)
async def test_a_server_s_vector_is_returned(server: EmbeddingServer, provider: str, base: str) -> None:
    assert await embed(provider, server.url + base, api_key=SecretStr("k")) == [0.5, 1.0]
    ((path, body, authorization),) = server.requests
    assert path in ANSWERS
    assert body == {"model": "m", "input": "A flight."}
    assert authorization == "Bearer k"


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize(("provider", "base"), SERVERS)
async def test_what_passes_is_tried_again(server: EmbeddingServer, provider: str, base: str, status: int) -> None:
    server.script.append((status, {}))
    assert await embed(provider, server.url + base) == [0.5, 1.0]
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_setting_that_the_server_refuses_is_named(server: EmbeddingServer, status: int) -> None:
    server.script.extend([(status, {})] * 8)  # four attempts, each followed by a question with another text
    with pytest.raises(ConfigurationError, match=f"AFTERWORD_EMBEDDER.*{status}"):
        await embed("openai", server.url + "/v1")


@pytest.mark.parametrize("status", [400, 403, 413])
async def test_a_text_that_the_server_alone_refuses_gets_no_vector(server: EmbeddingServer, status: int) -> None:
    server.script.append((status, {}))
    assert await embed("openai", server.url + "/v1") is None
    assert len(server.requests) == (1 if status == 413 else 2), "a text that is too long needs no second question"


@pytest.mark.parametrize(
    "body", [{}, {"data": []}, {"data": [{"embedding": []}]}, {"data": [{"embedding": ["x"]}]}, {"data": None}]
)
async def test_an_answer_without_a_vector_is_no_vector_at_all(server: EmbeddingServer, body: dict[str, Any]) -> None:
    server.script.append((200, body))
    with pytest.raises(StoreUnavailable, match="no vector"):
        await embed("openai", server.url + "/v1")


async def test_a_server_that_is_not_there_is_unavailable(closed_port: int) -> None:
    with pytest.raises(StoreUnavailable, match="embedder"):
        await embed("ollama", f"http://127.0.0.1:{closed_port}")


async def test_the_local_model_puts_like_beside_like() -> None:
    embedder = make_embedder(EmbedderSettings(provider="local"), Redaction())
    assert embedder is not None
    texts = ("The flight to Rome was booked.", "He reserved a plane ticket.", "The soup needs more salt.")
    flight, ticket, soup = [vector or [] for vector in await embedder.embed(texts)]
    assert len(flight) == 256
    assert sum(a * a for a in flight) == pytest.approx(1, abs=1e-4)
    assert sum(a * b for a, b in zip(flight, ticket, strict=True)) > sum(
        a * b for a, b in zip(flight, soup, strict=True)
    )
    assert embedder.model == EmbedderSettings(provider="local").vectors_model
    await embedder.close()


class Refusing:
    """An embedder that refuses one text."""

    model = "m"

    async def embed(self, texts: Sequence[str]) -> list[list[float] | None]:
        return [None if text == "refused" else [float(len(text)), 1.0] for text in texts]

    async def close(self) -> None:
        """Do nothing: it holds no connection."""


async def test_the_beginnings_of_messages_are_embedded_without_what_has_no_text_or_is_refused() -> None:
    texts = {"m1": "x" * (VECTOR_CHARACTERS + 1), "m2": " ", "m3": "refused", "m4": "ab"}
    assert await embed_messages(Refusing(), texts) == {"m1": [float(VECTOR_CHARACTERS), 1.0], "m4": [2.0, 1.0]}
