"""Questions to an LLM, answered by the cache or the server: limited, retried while that may help, counted, traced."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import orjson
import structlog
from opentelemetry.trace import Span, SpanKind, Tracer

from afterword.schemas import Usage
from afterword.streams.errors import (
    AnswerInvalid,
    PromptRefused,
    ProviderError,
    ProviderMisconfigured,
    ProviderUnavailable,
    StoreUnavailable,
)
from afterword.streams.settings import Llm
from afterword.streams.stores.replies import KeptReply, ReplyCache, ReplyOrigin
from afterword.streams.summarizer.llm.chat import ChatProtocol, ChatRequest, Reply
from afterword.streams.summarizer.llm.refusals import Refusals, harmless
from afterword.streams.summarizer.llm.retrying import TIME_IS_UP, RetryBudget, retrying
from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.metrics import known_error_type as bounded
from afterword.streams.telemetry.tracing import open_span

T = TypeVar("T")

STAGE = "summarize"
CACHE_STAGE = "llm_cache"
CACHE_PAUSE_SECONDS = 30.0
"""Time without the cache after it could not be reached: each attempt may take its whole timeout."""

ANSWERS = 3
"""Most answers to a question, the first included, until one can be used."""

Question = Callable[[str | None], ChatRequest]
"""Makes a question, given what was wrong with the answer before."""
Read = Callable[[str], T]
"""Reads the text of an answer. Raises: AnswerInvalid for one that is of no use."""

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
        self.llm = llm
        self.refusals = Refusals(protocol)
        self._calls = asyncio.Semaphore(llm.max_concurrency)
        self._cache = Cache(replies, llm) if replies is not None and llm.cache_seconds else None
        self.metrics = metrics
        self._tracer = tracer
        self._close = close

    async def answer(self, request: ChatRequest, read: Read[T], asking: "Asking") -> T:
        """Return what `read` makes of the cached answer, or of one call's. Raises: ProviderError."""
        call = partial(self._call, request, read, asking)
        if self._cache is None:
            return (await call())[1]
        return await self._cache.get(reply_key(request, self.name, self.llm), call, read, asking)

    async def check(self, schema: dict[str, Any] | None = None) -> None:
        """Put a short question to each model, in the form of the others. Raises: ProviderError.

        `schema`: of the answers of the model for summaries.
        """
        await self.refusals.chat(harmless(ChatRequest([], 0, schema)))
        if self.llm.title_model:
            await self.refusals.chat(harmless(ChatRequest([], 0, model=self.llm.title_model)))

    async def close(self) -> None:
        if self._close:
            await self._close()

    async def _call(self, request: ChatRequest, read: Read[T], asking: "Asking") -> tuple[Reply, T]:
        deadline = asking.budget.deadline
        async with deadline.hold(self._calls):
            with self._traced(request.model or self.llm.model) as span:
                began = time.monotonic()
                try:
                    async with asyncio.timeout(deadline.left):
                        reply = await self.refusals.chat(request)
                except TimeoutError:
                    raise ProviderUnavailable(problem=TIME_IS_UP) from None
                took = time.monotonic() - began
                self._count(reply, span)
        asking.used += reply.usage + Usage(seconds=took)
        return reply, read(reply.complete_text)

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
                self.metrics.llm_requests.labels(bounded(error.error_type)).inc()
                raise

    def _count(self, reply: Reply, span: Span) -> None:
        usage = reply.usage
        self.metrics.llm_requests.labels(reply.outcome).inc()
        self.metrics.llm_tokens.labels("prompt").inc(usage.prompt_tokens)
        self.metrics.llm_tokens.labels("completion").inc(usage.completion_tokens)
        span.set_attributes(
            {
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "afterword.outcome": reply.outcome,
            }
        )


@dataclass
class Asking:
    """Asks the questions of one request. They share their time, and `used` has the tokens of all calls so far."""

    client: LlmClient
    budget: RetryBudget
    fresh: bool = False
    """Cached answers will not do."""
    origin: ReplyOrigin | None = None
    """The episode, kept with the answers."""
    used: Usage = field(default_factory=Usage)

    async def until_usable(self, question: Question, read: Read[T], problem: str | None = None) -> T:
        """Return what `read` makes of the answer; ask again while that may help, saying what was wrong with an answer.

        `problem`: what was wrong before. Raises: ProviderError with the `usage` of all calls so far.
        """

        last: tuple[ChatRequest, float] | None = None

        async def once() -> T:
            nonlocal problem, last
            request = question(problem)
            last = request, asyncio.get_running_loop().time()
            try:
                return await self.client.answer(request, read, self)
            except AnswerInvalid as error:
                problem = error.problem
                raise

        llm = self.client.llm
        try:
            return await retrying(STAGE, once, llm.attempts, self.budget, self.client.metrics, ANSWERS)
        except ProviderError as error:
            error.usage = self.used
            if last and await self._is_of_one_request(error, *last):
                raise PromptRefused(problem=error.problem, usage=self.used) from None
            raise

    async def _is_of_one_request(self, error: ProviderError, request: ChatRequest, asked_at: float) -> bool:
        """Tell whether the server fails at this request and answers others. A refusal was judged when it came."""
        fails = isinstance(error, ProviderUnavailable) and error.has_response and not error.retry_after
        if not fails or isinstance(error, ProviderMisconfigured) or self.budget.deadline.left <= 0:
            return False
        return await self.client.refusals.concern_one_request(request, asked_at)


class Cache:
    """Replies that could be read, by key. While the store cannot be reached, calls are made as without it."""

    def __init__(self, replies: ReplyCache, llm: Llm) -> None:
        self._replies = replies
        self._kept_for = timedelta(seconds=llm.cache_seconds)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._paused_until = 0.0

    async def get(self, key: str, call: Callable[[], Awaitable[tuple[Reply, T]]], read: Read[T], asking: "Asking") -> T:
        """Return what `read` makes of the cached answer; where that is of no use, the call's, and keep its reply.

        Raises: ProviderError of the call, and nothing is kept.
        """
        async with asking.budget.deadline.hold(self._locks.setdefault(key, asyncio.Lock())):
            if not asking.fresh and (kept := await self._if_reachable(lambda: self._replies.get(key))):
                with suppress(AnswerInvalid):  # kept by a version that read answers differently
                    return read(Reply(kept.text, Usage(), kept.cut_off, kept.refused).complete_text)
            reply, answer = await call()
            await self._keep(key, reply, asking.origin)
            return answer

    async def _keep(self, key: str, reply: Reply, origin: ReplyOrigin | None) -> None:
        kept = KeptReply(reply.text, reply.usage, reply.cut_off, reply.refused, origin)
        expires_at = datetime.now(UTC) + self._kept_for
        await self._if_reachable(lambda: self._replies.put(key, kept, expires_at))

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
