"""A local HTTP server with OpenAI's and Ollama's endpoints, which behaves as a test tells it to."""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest_asyncio
from aiohttp import web

from tests.endpoints import running_app

MODEL = "a-model"
TEXTS = {
    "title": "Cancelled order",
    "short_summary": "The user cancelled order 4711.",
    "long_summary": "The user asked to cancel order 4711. The assistant cancelled it. The refund takes three days.",
    "rolling_summary": "The user cancelled order 4711 and waits for the refund.",
}
PROMPT_TOKENS, COMPLETION_TOKENS = 120, 40
DIMENSIONS = 8

Outcome = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Recorded:
    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    at: float = field(default_factory=time.monotonic)
    """Seconds of the monotonic clock."""

    @property
    def prompt(self) -> str:
        return "\n".join(message["content"] for message in self.body["messages"])


@dataclass
class LlmServer:
    """Gives each chat request the next outcome of the script, and after the last one a good answer.

    A request whose prompt holds a word of `scripts` gets the next outcome of that script instead, so that
    conversations that are summarized at the same time each meet their own.
    """

    url: str = ""
    outcomes: deque[Outcome] = field(default_factory=deque)
    scripts: dict[str, deque[Outcome]] = field(default_factory=dict)
    usual: Outcome = field(default_factory=lambda: success())
    requests: list[Recorded] = field(default_factory=list)
    down: bool = False
    """True if all requests are answered with 503."""
    running: int = 0
    most_running: int = 0
    called: asyncio.Event = field(default_factory=asyncio.Event)
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    def script(self, *outcomes: Outcome) -> None:
        self.outcomes.extend(outcomes)

    def hangs(self) -> Outcome:
        """Never answer, until the server closes."""

        async def respond(request: web.Request) -> web.StreamResponse:
            await self.closing.wait()
            return web.Response(status=503)

        return respond

    def trickles(self) -> Outcome:
        """Send a space now and then, so that the connection is never idle, but never an answer."""

        async def respond(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            while not (self.closing.is_set() or request.transport is None or request.transport.is_closing()):
                await response.write(b" ")
                await asyncio.sleep(0.05)
            return response

        return respond

    async def chat(self, request: web.Request) -> web.StreamResponse:
        recorded = Recorded(request.path, await request.json(), dict(request.headers))
        self.requests.append(recorded)
        self.called.set()
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            script = self._script_for(recorded)
            return await (script.popleft() if script else self.usual)(request)
        finally:
            self.running -= 1

    def _script_for(self, recorded: Recorded) -> deque[Outcome]:
        own = (script for word, script in self.scripts.items() if word in recorded.prompt)
        return next(own, self.outcomes)

    @web.middleware
    async def or_nothing(self, request: web.Request, handler: Outcome) -> web.StreamResponse:
        return web.Response(status=503) if self.down else await handler(request)


def success(texts: dict[str, Any] | None = None) -> Outcome:
    return answers(orjson.dumps(texts or TEXTS).decode())


def answers(text: str, finish: str = "stop", refusal: str | None = None) -> Outcome:
    """Return a chat response with this text, which may be malformed JSON, the wrong schema, a refusal or empty."""

    async def respond(request: web.Request) -> web.StreamResponse:
        said = _ollama(text, finish) if request.path.startswith("/api/") else _openai(text, finish, refusal)
        return web.json_response(said)

    return respond


def after(seconds: float, outcome: Outcome) -> Outcome:
    async def respond(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await outcome(request)

    return respond


def fails(status: int, error: Any = None, **headers: str) -> Outcome:
    """Return an HTTP error with headers such as retry_after="1" and a body in the endpoint's form."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def respond(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": error or {"message": "no"}}, status=status, headers=named)

    return respond


def rate_limited(retry_after: str | None = None) -> Outcome:
    return fails(429, {"code": "rate_limit_exceeded"}, **({"retry_after": retry_after} if retry_after else {}))


def unknown_model(status: int = 404) -> Outcome:
    async def respond(request: web.Request) -> web.StreamResponse:
        message = "model 'a-model' not found"
        error = message if request.path.startswith("/api/") else {"code": "model_not_found", "message": message}
        return web.json_response({"error": error}, status=status)

    return respond


def resets() -> Outcome:
    async def respond(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return respond


def says(content: str, status: int = 200) -> Outcome:
    """Return an answer that is not an LLM's, such as a proxy's page."""

    async def respond(request: web.Request) -> web.StreamResponse:
        return web.Response(text=content, status=status, content_type="text/html")

    return respond


def _openai(text: str, finish: str, refusal: str | None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": refusal}
    return {
        "model": MODEL,
        "choices": [{"index": 0, "finish_reason": finish, "message": message}],
        "usage": {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS},
    }


def _ollama(text: str, finish: str) -> dict[str, Any]:
    return {
        "model": MODEL,
        "message": {"role": "assistant", "content": text},
        "done": True,
        "done_reason": finish,
        "prompt_eval_count": PROMPT_TOKENS,
        "eval_count": COMPLETION_TOKENS,
    }


def vector(text: str) -> list[float]:
    """Return a vector whose direction depends on the text."""
    return [byte / 255 - 0.5 for byte in hashlib.sha256(text.encode()).digest()[:DIMENSIONS]]


async def _embeddings(request: web.Request) -> web.Response:
    given = (await request.json())["input"]
    vectors = [vector(text) for text in ([given] if isinstance(given, str) else given)]
    if request.path.startswith("/api/"):
        return web.json_response({"model": MODEL, "embeddings": vectors})
    return web.json_response({"data": [{"index": i, "embedding": v} for i, v in enumerate(vectors)]})


@pytest_asyncio.fixture
async def llm_server() -> AsyncIterator[LlmServer]:
    async with running_server() as server:
        yield server


@asynccontextmanager
async def running_server() -> AsyncIterator[LlmServer]:
    """Run a server on a free port of 127.0.0.1; OpenAI's base URL is `{url}/v1`, Ollama's `{url}`."""
    server = LlmServer()
    app = web.Application(middlewares=[server.or_nothing])
    app.router.add_post("/v1/chat/completions", server.chat)
    app.router.add_post("/api/chat", server.chat)
    app.router.add_post("/v1/embeddings", _embeddings)
    app.router.add_post("/api/embed", _embeddings)
    async with running_app(app) as server.url:
        yield server
        server.closing.set()
