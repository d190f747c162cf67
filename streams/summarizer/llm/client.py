"""Questions to an LLM: limited, retried while that may help, counted and traced."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog
from opentelemetry.trace import Span, SpanKind, Tracer

from afterword.schemas import Usage
from afterword.streams.errors import (
    AnswerInvalid,
    PromptRefused,
    ProviderError,
    ProviderMisconfigured,
    ProviderUnavailable,
)
from afterword.streams.http import HttpClient
from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm.chat import ChatProtocol, ChatRequest
from afterword.streams.summarizer.llm.protocols import Ollama, OpenAi
from afterword.streams.summarizer.llm.refusals import Refusals, harmless
from afterword.streams.summarizer.llm.retrying import TIME_IS_UP, Deadline, retrying
from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.tracing import open_span

T = TypeVar("T")

STAGE = "summarize"
ANSWERS = 3
"""Maximum number of answers to a question, including the first, until one is usable."""

Question = Callable[[str | None], ChatRequest]
"""Makes a question, given what was wrong with the previous answer."""
Read = Callable[[str], T]
"""Reads an answer's text. Raises: AnswerInvalid if it is unusable."""

log = structlog.get_logger()
PROTOCOLS: Mapping[str, type[OpenAi | Ollama]] = {"openai": OpenAi, "ollama": Ollama}
"""Chat protocols by `llm.provider`."""


class LlmClient:
    """Asks one LLM server."""

    def __init__(
        self,
        protocol: ChatProtocol,
        llm: Llm,
        metrics: Metrics,
        tracer: Tracer,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`close` is called when the client is closed."""
        self.name = protocol.name
        self.llm = llm
        self.refusals = Refusals(protocol)
        self._calls = asyncio.Semaphore(llm.max_concurrency)
        self.metrics = metrics
        self._tracer = tracer
        self._close = close

    async def check(self, schema: dict[str, Any] | None = None) -> None:
        """Ask each model a short question, in the form of the real ones. Raises: ProviderError.

        `schema` is the JSON schema that the model for summaries has to follow.
        """
        await self.refusals.chat(harmless(ChatRequest([], 0, schema)))
        if self.llm.title_model:
            await self.refusals.chat(harmless(ChatRequest([], 0, model=self.llm.title_model)))

    async def close(self) -> None:
        if self._close:
            await self._close()

    async def answer(self, request: ChatRequest, read: Read[T], asking: "Asking") -> T:
        """Return what `read` makes of the answer. Raises: ProviderError."""
        deadline = asking.deadline
        async with deadline.hold(self._calls):
            model = request.model or self.llm.model
            began = time.monotonic()
            with self._observed(model) as span:
                try:
                    async with asyncio.timeout(deadline.left):
                        reply = await self.refusals.chat(request)
                except TimeoutError:
                    raise ProviderUnavailable(problem=TIME_IS_UP) from None
                took = time.monotonic() - began
                usage = reply.usage
                self.metrics.llm_requests.labels(reply.outcome).inc()
                self.metrics.llm_tokens.labels("prompt").inc(usage.prompt_tokens)
                self.metrics.llm_tokens.labels("completion").inc(usage.completion_tokens)
                self.metrics.llm_tokens.labels("cached").inc(usage.cached_tokens)
                span.set_attributes(
                    {
                        "gen_ai.usage.input_tokens": usage.prompt_tokens,
                        "gen_ai.usage.output_tokens": usage.completion_tokens,
                        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                        "afterword.outcome": reply.outcome,
                    }
                )
        asking.used += reply.usage + Usage(seconds=took)
        return read(reply.complete_text)

    @contextmanager
    def _observed(self, model: str | None) -> Iterator[Span]:
        """Trace and time one call, and count its error."""
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": self.name}
        if model:
            attributes["gen_ai.request.model"] = model
        name = f"chat {model}" if model else "chat"
        began, error_type = time.monotonic(), ""
        with open_span(self._tracer, name, SpanKind.CLIENT, attributes) as span:
            try:
                yield span
            except ProviderError as error:
                error_type = error.error_type
                self.metrics.llm_requests.labels(error_type).inc()
                raise
            finally:
                seconds = self.metrics.llm_seconds.labels("chat", self.name, model or "", error_type)
                seconds.observe(time.monotonic() - began)


@dataclass
class Asking:
    """Asks the questions of one request. They share a deadline, and `used` has the tokens of all calls so far."""

    client: LlmClient
    retry_seconds: float
    """Time for the retries of a question."""
    deadline: Deadline = field(default_factory=Deadline)
    used: Usage = field(default_factory=Usage)

    async def until_usable(self, question: Question, read: Read[T], problem: str | None = None) -> T:
        """Return what `read` makes of the answer. While it may help, ask again, saying what was wrong with the answer.

        `problem` is what was wrong before. Raises: ProviderError with the `usage` of all calls so far.
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
            return await retrying(
                STAGE, once, llm.attempts, self.retry_seconds, self.deadline, self.client.metrics, ANSWERS
            )
        except ProviderError as error:
            error.usage = self.used
            if last and await self._is_of_one_request(error, *last):
                raise PromptRefused(problem=error.problem, usage=self.used) from None
            raise

    async def _is_of_one_request(self, error: ProviderError, request: ChatRequest, asked_at: float) -> bool:
        """Return whether the server fails at this request but answers others. A refusal was judged when it came."""
        fails = isinstance(error, ProviderUnavailable) and error.has_response and not error.retry_after
        if not fails or isinstance(error, ProviderMisconfigured) or self.deadline.left <= 0:
            return False
        return await self.client.refusals.concern_one_request(request, asked_at)


def make_client(llm: Llm, metrics: Metrics, tracer: Tracer) -> LlmClient:
    """Make the client of the configured server, which connects with its first question.

    Raises: ConfigurationError if the address, the key or the CA file cannot be used.
    """
    protocol = PROTOCOLS[llm.provider]
    http = HttpClient(llm, "llm", protocol.DEFAULT_URL, llm.max_concurrency)
    return LlmClient(protocol(llm, http), llm, metrics, tracer, close=http.close)
