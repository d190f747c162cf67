"""Questions to an LLM: put into the server's protocol, limited, retried while that may help, counted and traced.

Servers are asked in OpenAI's chat completions protocol, which most of them support, or in Ollama's own.
"""

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import ceil
from typing import Any, ClassVar, TypeVar

import structlog
from opentelemetry.trace import SpanKind, Tracer

from afterword.schemas import Usage
from afterword.schemas.summaries import OK, Calls
from afterword.streams.errors import (
    AnswerInvalid,
    PromptFailed,
    PromptRefused,
    ProviderError,
    ProviderMisconfigured,
    ProviderUnavailable,
)
from afterword.streams.http import REASONS, HttpClient, no_answer, reported
from afterword.streams.settings import Llm
from afterword.streams.stores.bookkeeping import Records
from afterword.streams.summarizer.retrying import TIME_IS_UP, Deadline, ServerState, retrying
from afterword.streams.telemetry.metrics import Metrics
from afterword.streams.telemetry.tracing import GenAI, open_span
from afterword_text.answer import AnswerUnusable, without_thinking
from afterword_text.content import (
    ASKED,
    TEXTS,
    ContentUnreadable,
    Kind,
    flatten,
    flatten_message,
    name_words,
    walk,
)
from afterword_text.fences import Messages, fenced_prompt
from afterword_text.tokens import TOKENIZER_MARGIN, count_tokens

T = TypeVar("T")

STAGE = "summarize"
MOST_CHARACTERS = 100_000
"""Maximum number of characters of an answer that are read; no model writes more, only a broken server sends more."""
MOST_TOKENS = 10**9
"""Largest number of tokens in one call that is believed; sums of such numbers fit into 64 bits."""
OPTIONAL = frozenset(
    {"max_tokens", "max_completion_tokens", "temperature", "response_format", "truncate", "shift", "format"}
)
"""Fields that are left out if the server refuses them."""
SMALLEST_CONTEXT = 8192
WHOLE = {"truncate": False, "shift": False}
"""Fields that make Ollama refuse a prompt or an answer beyond its context, instead of dropping the beginning."""
HARMLESS_TOKENS = 256
"""Limit of a check's answer: enough for a few words after a short thought."""
ANSWERS = 3
"""Maximum number of answers to a question, including the first, until one is usable."""

ONLY_THOUGHT = "it was cut off while the model was thinking: raise AFTERWORD_LLM__MAX_OUTPUT_TOKENS"

log = structlog.get_logger()


@dataclass(frozen=True)
class ChatRequest:
    """One question. The answer depends on it and on the LLM's settings, and on nothing else."""

    messages: Messages
    max_tokens: int
    """Limit of the answer."""
    schema: dict[str, Any] | None = None
    """JSON schema of the answer; None means plain text."""
    model: str | None = None
    """The model; None means the one in the settings."""
    left_out: frozenset[str] = frozenset()
    """Optional fields of the protocol that are not sent to the server."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the messages, by our tokenizer."""
        return sum(count_tokens(message["content"]) for message in self.messages)

    def room(self, context_tokens: int) -> int:
        """Return how many of our tokens the messages may grow by in a model's context; negative if they exceed it."""
        return int((context_tokens - self.max_tokens) / TOKENIZER_MARGIN) - self.prompt_tokens


@dataclass(frozen=True)
class Reply:
    """An LLM's answer to one question."""

    text: str
    usage: Usage
    outcome: str = OK
    """`ok`, even though the text may still be unusable, `refused`, or `cut_off`."""
    problem: str = ""
    """What is wrong with another outcome, in words for a model."""

    @property
    def complete_text(self) -> str:
        """The text of a complete answer. Raises: AnswerInvalid."""
        if self.problem:
            raise AnswerInvalid(problem=self.problem)
        if len(self.text) > MOST_CHARACTERS:
            raise AnswerInvalid(problem=f"it was longer than {MOST_CHARACTERS} characters")
        return self.text


class ChatProtocol(ABC):
    """Turns a question into an HTTP request, and the response into a reply."""

    DEFAULT_URL: ClassVar[str]

    def __init__(self, llm: Llm, http: HttpClient) -> None:
        self._llm = llm
        self._http = http

    @abstractmethod
    async def chat(self, request: ChatRequest) -> Reply:
        """Ask once. Raises: ProviderError."""

    def optional_fields(self, request: ChatRequest) -> frozenset[str]:
        """Return the optional fields that this question is sent with."""
        return OPTIONAL.intersection(self._body(request))

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        return {name: value for name, value in self._fields(request).items() if name not in request.left_out}

    @abstractmethod
    def _fields(self, request: ChatRequest) -> dict[str, Any]: ...


def content_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message's content in any form, without its thoughts if they are marked as such."""
    content = message.get("content")
    if isinstance(content, dict) and content.keys().isdisjoint(TEXTS):
        return json.dumps(content)  # some servers parse the object that was asked for
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    with suppress(ContentUnreadable):  # parts of one answer may be split anywhere, so they are joined directly
        return "".join(piece.text for part in content for piece in flatten(part) if piece.kind is Kind.SAID)
    return ""


def said_in(message: Mapping[str, Any], *, is_complete: bool) -> str:
    """Return a message's text, from its content, else from its reasoning or the arguments of a call.

    Raises: ProviderUnavailable for a complete message without any text.
    """
    text = content_text(message)
    if not text.strip():
        with suppress(ContentUnreadable):
            text = "\n".join(piece.text for piece in flatten_message(message) if piece.kind is not Kind.RESULT)
    if is_complete and not text.strip():
        objects = (value for path, value in walk(message) if path and path[-1] in {*ASKED, "parsed"} and value)
        text = next((value if isinstance(value, str) else json.dumps(value) for value in objects), "")
        if not text.strip():
            raise no_answer("its response has no text")
    return text


def is_complete(reason: object) -> bool:
    """Return whether a model that finished for this reason said everything; None means that no reason is given."""
    words = reason_words(reason)
    return reason is None or (bool(words) and REASONS["complete"].issuperset(words))


def reason_words(reason: object) -> Sequence[str]:
    return name_words(reason) if isinstance(reason, str) else ()


def outcome_of(message: Mapping[str, Any], *, is_complete: bool, is_refused: bool = False) -> tuple[str, str]:
    """Return outcome and problem of an answer; one that was cut off may not even have begun."""
    if is_refused:
        return "refused", "it was a refusal"
    if is_complete:
        return OK, ""
    has_begun = without_thinking(content_text(message)).strip()
    return "cut_off", "it was cut off before its end: be shorter" if has_begun else ONLY_THOUGHT


def token_count(value: object) -> int:
    """Read a number of tokens as a server reports it; 0 if it reports none, or nonsense."""
    return value if type(value) is int and 0 < value <= MOST_TOKENS else 0


class OpenAi(ChatProtocol):
    """`POST {base_url}/chat/completions`."""

    DEFAULT_URL = "https://api.openai.com/v1"

    async def chat(self, request: ChatRequest) -> Reply:
        body = self._body(request)
        return read_openai_reply(await self._http.post("/chat/completions", body), body)

    def _fields(self, request: ChatRequest) -> dict[str, Any]:
        # reasoning models know only the limit's new name, most other servers only the old one
        limit = "max_completion_tokens" if "max_tokens" in request.left_out else "max_tokens"
        options: dict[str, Any] = {"temperature": self._llm.temperature, limit: request.max_tokens}
        if request.schema:
            schema = {"name": "summary", "strict": True, "schema": request.schema}
            options["response_format"] = {"type": "json_schema", "json_schema": schema}
        return {"model": request.model or self._llm.model, "messages": request.messages, **options}


def read_openai_reply(data: dict[str, Any], body: dict[str, Any]) -> Reply:
    """Read a completion. Raises: ProviderUnavailable if it is something else or an error."""
    try:
        choice = data["choices"][0]
        message = choice["message"]
        finished, refusal = choice.get("finish_reason"), message.get("refusal")
        # LiteLLM's two places for what its upstream says, and OpenRouter's
        places = [choice.get("provider_specific_fields"), message.get("provider_specific_fields"), choice]
        told = [place for place in places if isinstance(place, dict)]
        native = [place.get("native_finish_reason") for place in told]
        error = next(filter(None, (place.get("error") for place in told)), None)
    except (KeyError, IndexError, TypeError, AttributeError):
        raise reported(data, body, "its response was not a chat completion") from None
    # gateways call any reason that they do not know "stop"
    reason = next((value for value in native if isinstance(value, str) and value), finished)
    if error or (isinstance(reason, str) and reason.lower() == "error"):
        raise reported(error or reason, body)
    used = data.get("usage")
    usage = used if isinstance(used, dict) else {}
    prompt_tokens = token_count(usage.get("prompt_tokens"))
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    # Anthropic's servers use the second name
    cached_tokens = token_count(cached) or token_count(usage.get("cache_read_input_tokens"))
    refused = bool(refusal) or not REASONS["refusing"].isdisjoint([*reason_words(finished), *reason_words(reason)])
    complete = is_complete(reason)
    return Reply(
        "" if refused else said_in(message, is_complete=complete),
        Usage(
            prompt_tokens=prompt_tokens,
            cached_tokens=min(prompt_tokens, cached_tokens),
            completion_tokens=token_count(usage.get("completion_tokens")),
        ),
        *outcome_of(message, is_complete=complete, is_refused=refused),
    )


class Ollama(ChatProtocol):
    """`POST {base_url}/api/chat`."""

    DEFAULT_URL = "http://127.0.0.1:11434"

    async def chat(self, request: ChatRequest) -> Reply:
        return read_ollama_reply(await self._http.post("/api/chat", self._body(request)))

    def _fields(self, request: ChatRequest) -> dict[str, Any]:
        options: dict[str, Any] = {
            "temperature": self._llm.temperature,
            "num_predict": request.max_tokens,
            "num_ctx": context_tokens(request, self._llm.context_tokens),
        }
        body = {"model": request.model or self._llm.model, "stream": False, "options": options, **WHOLE}
        schema = {"format": request.schema} if request.schema else {}
        return {**body, "messages": request.messages, **schema}


def context_tokens(request: ChatRequest, largest: int) -> int:
    """Choose the context size to request, because Ollama's default is small.

    Sizes are powers of two up to the model's `largest`, because each change makes Ollama load the model again.
    """
    needed = ceil(TOKENIZER_MARGIN * request.prompt_tokens + request.max_tokens)
    return min(max(SMALLEST_CONTEXT, 1 << (needed - 1).bit_length()), largest)


def read_ollama_reply(data: dict[str, Any]) -> Reply:
    """Read a chat response. Raises: ProviderUnavailable if the response is not one."""
    message = data.get("message")
    if not isinstance(message, dict):
        raise no_answer("its response was not a chat response")
    complete = is_complete(data.get("done_reason")) and data.get("done") is not False
    return Reply(
        said_in(message, is_complete=complete),
        Usage(
            prompt_tokens=token_count(data.get("prompt_eval_count")),
            completion_tokens=token_count(data.get("eval_count")),
        ),
        *outcome_of(message, is_complete=complete),
    )


def harmless(request: ChatRequest) -> ChatRequest:
    """Make a question that no filter refuses, with the roles, the limit and the fields of another one."""
    return replace(request, messages=[{**message, "content": "Answer with yes."} for message in request.messages])


Question = Callable[[str | None], ChatRequest]
"""Makes a question, given what was wrong with the previous answer."""
Read = Callable[[str], T]
"""Reads an answer's text. Raises: AnswerInvalid or AnswerUnusable if it is unusable."""


class LlmClient:
    """Asks one LLM server, and omits from then on the optional fields that it refuses in every request."""

    def __init__(
        self,
        protocol: ChatProtocol,
        llm: Llm,
        metrics: Metrics,
        tracer: Tracer,
        close: Callable[[], Awaitable[None]] | None = None,
        records: Records | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`close` is called when the client is closed. With `records`, all workers pause together when the server
        refuses everything, so their `clock` is the wall clock.
        """
        self.llm = llm
        self.metrics = metrics
        self.left_out: frozenset[str] = frozenset()
        """Optional fields of requests that the server turned out to refuse."""
        self.is_metered = True
        """False once the server has answered without saying how many tokens it used."""
        self._protocol = protocol
        self._calls = asyncio.Semaphore(llm.max_concurrency)
        self._tracer = tracer
        self._close = close
        self._records = records
        self.clock = clock
        self._states: dict[str | None, ServerState] = {}
        """By model."""
        self._learning = asyncio.Lock()

    async def check(self, schema: dict[str, Any] | None = None) -> None:
        """Ask each model a short question, in the form of the real ones. Raises: ProviderError if it does not answer.

        `schema` is the JSON schema that the model for summaries has to follow.
        """
        question = harmless(ChatRequest(fenced_prompt("", "", {}, {}), HARMLESS_TOKENS, schema))
        of_title = replace(question, schema=None, model=self.llm.title_model)
        for one in (question, of_title) if self.llm.title_model else (question,):
            async with self._state(one).turn(takes_interval=False):
                await self._chat(one)

    async def close(self) -> None:
        if self._close:
            await self._close()

    async def answer(self, request: ChatRequest, read: Read[T], asking: "Asking") -> T:
        """Return what `read` makes of the answer. Raises: ProviderError."""
        async with asking.deadline.hold(self._calls), self._state(request).turn():
            answer = await self._answer(request, read, asking)
            self._state(request).used(None)
            return answer

    async def _answer(self, request: ChatRequest, read: Read[T], asking: "Asking") -> T:
        model, error_type, began = request.model or self.llm.model, "", time.monotonic()
        attributes = {GenAI.OPERATION: GenAI.CHAT, GenAI.PROVIDER: self.llm.provider}
        if model:
            attributes[GenAI.REQUEST_MODEL] = model
        with open_span(self._tracer, f"{GenAI.CHAT} {model or ''}".rstrip(), SpanKind.CLIENT, attributes) as span:
            try:
                async with asyncio.timeout(asking.deadline.left):
                    reply = await self._chat(request)
            except (ProviderError, TimeoutError) as error:
                failed = error if isinstance(error, ProviderError) else ProviderUnavailable(problem=TIME_IS_UP)
                error_type = failed.error_type
                self.metrics.llm_requests.labels(error_type).inc()
                asking.calls.append(Calls(model or self.llm.provider, error_type, Usage()))
                raise failed from None
            finally:
                took = time.monotonic() - began
                self.metrics.llm_seconds.labels(GenAI.CHAT, self.llm.provider, model or "", error_type).observe(took)
            usage = reply.usage
            self.metrics.llm_requests.labels(reply.outcome).inc()
            for kind in ("prompt", "completion", "cached"):
                self.metrics.llm_tokens.labels(kind).inc(getattr(usage, f"{kind}_tokens"))
            span.set_attributes(
                {
                    GenAI.INPUT_TOKENS: usage.prompt_tokens,
                    GenAI.OUTPUT_TOKENS: usage.completion_tokens,
                    GenAI.CACHED_TOKENS: usage.cached_tokens,
                    "afterword.outcome": reply.outcome,
                }
            )
        self.is_metered = usage.prompt_tokens > 0
        # our own count is better than none
        asked, said = usage.prompt_tokens or request.prompt_tokens, usage.completion_tokens or count_tokens(reply.text)
        usage = usage.model_copy(update={"prompt_tokens": asked, "completion_tokens": said})
        outcome = reply.outcome
        try:
            return read(reply.complete_text)
        except (AnswerInvalid, AnswerUnusable) as error:
            invalid = AnswerInvalid(problem=str(error)) if isinstance(error, AnswerUnusable) else error
            outcome = invalid.error_type if outcome == OK else outcome
            raise invalid from None
        finally:
            asking.calls.append(Calls(model or self.llm.provider, outcome, usage + Usage(seconds=took)))

    def _state(self, request: ChatRequest) -> ServerState:
        if request.model not in self._states:
            key, model = self.llm.api_key, request.model or self.llm.model
            server = f"{self.llm.base_url} {model} {key.get_secret_value() if key else ''}"
            # hashed, because it holds secrets
            digest = sha256(server.encode()).hexdigest()
            self._states[request.model] = ServerState(self.clock, self._records, digest)
        return self._states[request.model]

    async def gave_up(self, request: ChatRequest, problem: str) -> None:
        """Note that a question got no usable answer."""
        self._state(request).used(problem)
        await self._state(request).share()

    async def _chat(self, request: ChatRequest) -> Reply:
        """Ask once, and again without optional fields if that may help.

        Raises: ProviderError, which is a PromptRefused if the server refuses this request but answers others.
        """
        asked_at = self.clock()
        try:
            reply = await self._protocol.chat(self._accepted(request))
        except ProviderUnavailable as error:
            is_final = error.stops_asking or error.retry_after
            if is_final or not (error.named or isinstance(error, ProviderMisconfigured)):
                raise
            reply = await self._chat_without(self._accepted(request), error, asked_at)
        self._state(request).answered()
        return reply

    async def concern_one_request(self, request: ChatRequest, asked_at: float) -> bool:
        """Return whether the server answers other requests while it fails at this one, which was sent at `asked_at`."""
        question = self._accepted(harmless(request))
        return await self._state(request).concern_one_request(asked_at, lambda: self._protocol.chat(question))

    def _accepted(self, request: ChatRequest) -> ChatRequest:
        return replace(request, left_out=self.left_out) if self.left_out else request

    async def _chat_without(self, request: ChatRequest, first: ProviderUnavailable, asked_at: float) -> Reply:
        """Omit the optional fields that an error names, or all of them if the server refuses every request."""
        error, refuses_all = first, False
        while True:
            fields = self._protocol.optional_fields(request)
            suspects = fields & error.named
            if not suspects:
                if not isinstance(error, ProviderMisconfigured):
                    raise first
                if not refuses_all and await self.concern_one_request(request, asked_at):
                    refused = isinstance(first, ProviderMisconfigured) and first.is_refusal
                    raise (PromptRefused if refused else PromptFailed)(problem=first.problem)
                refuses_all = True
                suspects = fields
            if not suspects:
                first.stops_asking = True
                raise first
            request = replace(request, left_out=request.left_out | suspects)
            try:
                reply = await self._protocol.chat(request)
            except ProviderUnavailable as again:
                error = again
            else:
                await self._learn(harmless(request))
                return reply

    async def _learn(self, question: ChatRequest) -> None:
        """Omit a field permanently only if the server refuses a harmless question because of it.

        A filter's error may name a field too, because it quotes the prompt.
        """
        async with self._learning:
            for field in sorted(question.left_out - self.left_out):
                try:
                    await self._protocol.chat(replace(question, left_out=question.left_out - {field}))
                except ProviderError as error:
                    if isinstance(error, ProviderMisconfigured) or field in error.named:
                        self.left_out |= {field}
                        log.warning("llm_field_left_out", stage=STAGE, field=field, problem=error.problem)


@dataclass
class Asking:
    """Asks the questions of one request, which share a deadline."""

    client: LlmClient
    retry_seconds: float
    """Time for the retries of a question."""
    deadline: Deadline = field(default_factory=Deadline)
    calls: list[Calls] = field(default_factory=list)
    """All calls so far; more are added."""

    async def until_usable(self, question: Question, read: Read[T], problem: str | None = None) -> T:
        """Return what `read` makes of the answer. While it may help, ask again, saying what was wrong with the answer.

        `problem` describes the fault of an earlier answer. Raises: ProviderError.
        """
        last: tuple[ChatRequest, float] | None = None

        async def once() -> T:
            nonlocal problem, last
            request = question(problem)
            last = request, self.client.clock()
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
            match error:
                case AnswerInvalid() if last:
                    await self.client.gave_up(last[0], error.problem)
                case ProviderMisconfigured():
                    pass  # whether the server refuses only this request was judged when it did
                case ProviderUnavailable(has_response=True, retry_after=0.0) if last and self.deadline.left > 0:
                    if await self.client.concern_one_request(*last):
                        raise PromptFailed(problem=error.problem) from None
            raise


PROTOCOLS: Mapping[str, type[ChatProtocol]] = {"openai": OpenAi, "ollama": Ollama}
"""Chat protocols by `llm.provider`."""


def make_client(llm: Llm, metrics: Metrics, tracer: Tracer, records: Records | None = None) -> LlmClient:
    """Make the client of the configured server, which connects with its first question.

    Raises: ConfigurationError if the address, the key or the CA file cannot be used.
    """
    protocol = PROTOCOLS[llm.provider]
    http = HttpClient(llm, "llm", protocol.DEFAULT_URL, llm.max_concurrency)
    return LlmClient(protocol(llm, http), llm, metrics, tracer, http.close, records)
