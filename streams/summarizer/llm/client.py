"""One question to an LLM, from the cache or the server: retried while that may help, counted and traced."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

import orjson
import structlog
from opentelemetry.trace import Span, SpanKind, Tracer

from afterword.schemas import Usage
from afterword.streams.errors import AnswerInvalid, ProviderError, StoreUnavailable
from afterword.streams.settings import Llm
from afterword.streams.stores.replies import KeptReply, ReplyCache, ReplyOrigin
from afterword.streams.summarizer.llm.chat import ChatProtocol, ChatRequest, Reply
from afterword.streams.summarizer.llm.retrying import RetryBudget, retrying
from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.metrics import known_error_type as bounded
from afterword.streams.telemetry.tracing import open_span

T = TypeVar("T")

STAGE = "summarize"
CACHE_STAGE = "llm_cache"
CACHE_PAUSE_SECONDS = 30.0
"""Time without the cache after it could not be reached: each attempt may take its whole timeout."""

Read = Callable[[Reply], object]
"""Reads a reply. Raises: AnswerInvalid for one that is of no use."""

log = structlog.get_logger()


class LlmClient:
    """Asks one LLM server. With a cache, a question that several put at the same time is asked once."""

    def __init__(
        self,
        protocol: ChatProtocol,
        llm: Llm,
        replies: ReplyCache | None,
        metrics: Metrics,
        tracer: Tracer,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`replies`: None, or `llm.cache_seconds` of 0, keeps no reply. `close` is called when the client is closed."""
        self.name = protocol.name
        self._protocol = protocol
        self._llm = llm
        self._cache = Cache(replies, llm) if replies is not None and llm.cache_seconds else None
        self._metrics = metrics
        self._tracer = tracer
        self._close = close

    async def ask(
        self,
        request: ChatRequest,
        budget: RetryBudget,
        read: Read = lambda _: None,
        *,
        fresh: bool = False,
        origin: ReplyOrigin | None = None,
    ) -> Reply:
        """Return a reply that `read` accepts; one that was kept has cost nothing this time.

        `fresh`: a cached answer will not do. `origin`: the episode, kept with the reply. Raises: ProviderError; what
        `read` raises, an AnswerInvalid, with the usage.
        """
        reply = partial(self._reply, request, read, fresh=fresh, origin=origin)
        return await retrying(STAGE, reply, self._llm.attempts, budget, self._metrics)

    async def check(self) -> None:
        """Ask whether server and models are there. Raises: ProviderError."""
        await self._protocol.check()

    async def close(self) -> None:
        if self._close:
            await self._close()

    async def _reply(self, request: ChatRequest, read: Read, *, fresh: bool, origin: ReplyOrigin | None) -> Reply:
        call = partial(self._call, request, read)
        if self._cache is None:
            return await call()
        return await self._cache.get(reply_key(request, self.name, self._llm), call, read, fresh=fresh, origin=origin)

    async def _call(self, request: ChatRequest, read: Read) -> Reply:
        with self._traced(request.model or self._llm.model) as span:
            reply = await self._protocol.chat(request)
            self._count(reply, span)
        try:
            read(reply)
        except AnswerInvalid as error:
            raise AnswerInvalid(problem=error.problem, usage=reply.usage) from None
        return reply

    @contextmanager
    def _traced(self, model: str | None) -> Iterator[Span]:
        """Trace one call and count its error."""
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": self.name}
        if model:
            attributes["gen_ai.request.model"] = model
        name = f"chat {model}" if model else "chat"
        with open_span(self._tracer, name, SpanKind.CLIENT, attributes) as span:
            try:
                yield span
            except ProviderError as error:
                self._metrics.llm_requests.labels(bounded(error.error_type)).inc()
                raise

    def _count(self, reply: Reply, span: Span) -> None:
        usage = reply.usage
        self._metrics.llm_requests.labels(reply.outcome).inc()
        self._metrics.llm_tokens.labels("prompt").inc(usage.prompt_tokens)
        self._metrics.llm_tokens.labels("completion").inc(usage.completion_tokens)
        span.set_attributes(
            {
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "afterword.outcome": reply.outcome,
            }
        )


class Cache:
    """Replies that could be read, by key. While the store cannot be reached, calls are made as without it."""

    def __init__(self, replies: ReplyCache, llm: Llm) -> None:
        self._replies = replies
        self._kept_for = timedelta(seconds=llm.cache_seconds)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._paused_until = 0.0

    async def get(
        self, key: str, call: Callable[[], Awaitable[Reply]], read: Read, *, fresh: bool, origin: ReplyOrigin | None
    ) -> Reply:
        """Return the cached answer, without its usage, if `read` accepts it; else the call's, and keep that.

        Raises: ProviderError of the call, and nothing is kept.
        """
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            kept = None if fresh else await self._readable(key, read)
            return kept or await self._keep(key, await call(), origin)

    async def _readable(self, key: str, read: Read) -> Reply | None:
        kept = await self._if_reachable(lambda: self._replies.get(key))
        if kept is None:
            return None
        reply = Reply(kept.text, Usage(), kept.cut_off, kept.refused)
        try:
            read(reply)
        except AnswerInvalid:  # kept by a version that read answers differently
            return None
        return reply

    async def _keep(self, key: str, reply: Reply, origin: ReplyOrigin | None) -> Reply:
        kept = KeptReply(reply.text, reply.usage, reply.cut_off, reply.refused, origin)
        expires_at = datetime.now(UTC) + self._kept_for
        await self._if_reachable(lambda: self._replies.put(key, kept, expires_at))
        return reply

    async def _if_reachable(self, call: Callable[[], Awaitable[T]]) -> T | None:
        if time.monotonic() < self._paused_until:
            return None
        try:
            return await call()
        except StoreUnavailable as error:
            self._paused_until = time.monotonic() + CACHE_PAUSE_SECONDS
            log.warning("llm_cache_skipped", stage=CACHE_STAGE, error_type=error.error_type, problem=str(error))
            return None


def reply_key(request: ChatRequest, protocol: str, llm: Llm) -> str:
    """Hash all that an answer depends on: SHA-256, hexadecimal. The server's address may change and is not in it."""
    model = request.model or llm.model
    parameters = [protocol, model, llm.temperature, llm.chat_format, request.max_tokens, request.schema]
    return hashlib.sha256(orjson.dumps([*parameters, request.messages], option=orjson.OPT_SORT_KEYS)).hexdigest()
