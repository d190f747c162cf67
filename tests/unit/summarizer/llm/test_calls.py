"""Calls of an LLM: protocols, bounded responses, retries, and what is counted and traced of them."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, get_args

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracer, Tracer

from afterword.schemas import Usage
from afterword.streams.errors import (
    AnswerInvalid,
    ConfigurationError,
    PromptRefused,
    ProviderError,
    ProviderRateLimited,
    ProviderUnavailable,
)
from afterword.streams.http import MOST_RESPONSE_BYTES, bounded_body, retry_after_seconds
from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm import (
    ANSWERS,
    PROTOCOLS,
    Asking,
    ChatRequest,
    LlmClient,
    Reply,
    context_tokens,
    read_openai_reply,
)
from afterword.streams.summarizer.retrying import retrying
from afterword.streams.telemetry.metrics import Metrics
from tests.doubles.llm import a_provider
from tests.rows import with_rows

NOW = datetime(2026, 1, 5, 12, 0, 0, tzinfo=UTC)


@with_rows
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(value, NOW) == seconds


async def calls_until_given_up(error: Exception, seconds: float) -> list[float]:
    """Return the loop's times of all calls, each of which fails with this error."""
    times: list[float] = []

    async def call() -> None:
        times.append(asyncio.get_running_loop().time())
        raise error

    with pytest.raises(type(error)):
        await retrying("summarize", call, 3, seconds)
    return times


async def test_only_transient_failures_are_retried() -> None:
    assert len(await calls_until_given_up(ProviderUnavailable(problem="x"), 1)) == 3
    for error in (PromptRefused(problem="x"), AnswerInvalid(problem="x"), ProviderError(problem="x"), ValueError()):
        assert len(await calls_until_given_up(error, 1)) == 1


async def test_requested_wait_is_kept_within_the_retry_time() -> None:
    times = await calls_until_given_up(ProviderRateLimited(retry_after=0.05), 1)
    assert len(times) == 3
    assert min(later - earlier for earlier, later in pairwise(times)) >= 0.05
    assert len(await calls_until_given_up(ProviderRateLimited(retry_after=59), 60)) == 1


async def test_caller_sees_the_last_error() -> None:
    calls = 0

    async def call() -> None:
        nonlocal calls
        calls += 1
        raise ProviderUnavailable(problem=f"call {calls}")

    with pytest.raises(ProviderUnavailable, match="call 3"):
        await retrying("summarize", call, 3, 1)


@pytest.mark.parametrize("url", ["not an address", "ftp://x", "http://", "127.0.0.1:80"])
def test_invalid_address_stops_the_start(url: str) -> None:
    with pytest.raises(ConfigurationError, match="AFTERWORD_LLM__BASE_URL"):
        a_provider(Llm(provider="openai", model="m", base_url=url))


@pytest.mark.parametrize("key", ["sk-ключ", "sk-a\nb"])
def test_unsendable_key_stops_the_start_unseen(key: str) -> None:
    with pytest.raises(ConfigurationError, match="AFTERWORD_LLM__API_KEY") as raised:
        a_provider(Llm.model_validate({"provider": "openai", "model": "m", "api_key": key}))
    assert key not in str(raised.value)


def test_ollama_is_asked_for_a_fitting_context() -> None:
    assert context_tokens(ChatRequest([{"role": "user", "content": "short"}], 1500), 32_768) == 8192
    assert context_tokens(ChatRequest([{"role": "user", "content": "word " * 10_000}], 1500), 32_768) == 16_384
    assert context_tokens(ChatRequest([{"role": "user", "content": "word " * 400_000}], 1500), 131_072) == 131_072
    assert context_tokens(ChatRequest([{"role": "user", "content": "word " * 10_000}], 1500), 12_000) == 12_000
    assert context_tokens(ChatRequest([{"role": "user", "content": "short"}], 1500), 4096) == 4096


class Wire(httpx.AsyncByteStream):
    """A body that comes in chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            yield chunk


def a_response(*chunks: bytes, status: int = 200, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, headers=named, stream=Wire(*chunks))


async def test_compressed_responses_are_not_decompressed() -> None:
    bomb = gzip.compress(bytes(2**20))
    with pytest.raises(ProviderUnavailable, match=r"compressed \(gzip\)"):
        await bounded_body(a_response(bomb, content_encoding="gzip"))
    assert await bounded_body(a_response(bomb, status=503, content_encoding="gzip")) == b""
    assert await bounded_body(a_response(b"{}", content_encoding="identity")) == b"{}"


async def test_body_is_read_up_to_the_limit() -> None:
    exactly = b"a" * MOST_RESPONSE_BYTES
    assert await bounded_body(a_response(exactly)) == exactly
    with pytest.raises(ProviderUnavailable, match="longer"):
        await bounded_body(a_response(exactly, b"a"))


async def test_long_error_is_known_by_its_status() -> None:
    assert await bounded_body(a_response(b"a" * MOST_RESPONSE_BYTES, b"a", status=500)) == b""


def test_every_allowed_provider_is_in_the_table() -> None:
    allowed = set(get_args(Llm.model_fields["provider"].annotation)) - {"extractive"}
    assert set(PROTOCOLS) == allowed


@with_rows
def test_cached_tokens_are_read(usage: dict[str, Any], cached: int) -> None:
    choice = {"message": {"content": "{}"}, "finish_reason": "stop"}
    reply = read_openai_reply({"choices": [choice], "usage": {"prompt_tokens": 100, **usage}}, {})
    assert (reply.usage.prompt_tokens, reply.usage.cached_tokens) == (100, cached)


QUESTION = ChatRequest([{"role": "user", "content": "secret"}], 100)
LLM = Llm(provider="openai", model="m-1", attempts=1)
SECRET = "hunter2"


async def ask(client: LlmClient) -> str:
    return await Asking(client, 60).until_usable(lambda _: QUESTION, str)


class Protocol:
    """Returns its replies one after the other, and raises those that are errors."""

    name = "openai"

    def __init__(self, *replies: Reply | Exception) -> None:
        self.replies = list(replies)

    async def chat(self, request: ChatRequest) -> Reply:
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("summarizer", "1.2.3")


async def test_each_question_is_counted_by_its_end(metrics: Metrics) -> None:
    used = Usage(prompt_tokens=7, cached_tokens=5, completion_tokens=3)
    good, cut_off = Reply("yes", used), Reply("", Usage(), "cut_off", "it was cut off")
    protocol = Protocol(good, *[cut_off] * ANSWERS, ProviderRateLimited(retry_after=1))
    client = LlmClient(protocol, LLM, metrics, NoOpTracer())
    await ask(client)
    for ended in (AnswerInvalid, ProviderRateLimited):
        with pytest.raises(ended):
            await ask(client)
    value = metrics.registry.get_sample_value
    ends = ("ok", "cut_off", "provider_rate_limited")
    assert [value("afterword_llm_requests_total", {"outcome": end}) for end in ends] == [1, ANSWERS, 1]
    assert value("afterword_llm_tokens_total", {"type": "prompt"}) == 7
    assert value("afterword_llm_tokens_total", {"type": "cached"}) == 5
    assert value("afterword_llm_tokens_total", {"type": "completion"}) == 3
    labels = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": "openai", "gen_ai_request_model": "m-1"}
    seconds = "gen_ai_client_inference_duration_seconds_count"
    assert value(seconds, {**labels, "error_type": ""}) == 1 + ANSWERS
    assert value(seconds, {**labels, "error_type": "provider_rate_limited"}) == 1
    assert b"secret" not in metrics.text()


async def test_retry_is_counted_when_it_is_made(metrics: Metrics) -> None:
    failures = [ProviderRateLimited(retry_after=0) for _ in range(3)]

    async def call() -> None:
        raise failures.pop()

    with pytest.raises(ProviderRateLimited):
        await retrying("summarize", call, 3, 0.2, metrics=metrics)
    labels = {"error_type": "provider_rate_limited"}
    assert metrics.registry.get_sample_value("afterword_llm_retries_total", labels) == 2 - len(failures)


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


async def test_question_to_an_llm_is_a_span_with_tokens(
    metrics: Metrics, spans: InMemorySpanExporter, tracer: Tracer
) -> None:
    reply = Reply(SECRET, Usage(prompt_tokens=7, cached_tokens=5, completion_tokens=3))
    await ask(LlmClient(Protocol(reply), LLM, metrics, tracer))
    span = by_name(spans)["chat m-1"]
    assert span.attributes is not None
    expected = {"gen_ai.provider.name": "openai", "gen_ai.request.model": "m-1", "gen_ai.operation.name": "chat"}
    tokens = {
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 5,
        "afterword.outcome": "ok",
    }
    assert {name: span.attributes[name] for name in expected | tokens} == expected | tokens
    assert SECRET not in span.to_json()


async def test_failed_question_has_its_errors_type_only(
    metrics: Metrics, spans: InMemorySpanExporter, tracer: Tracer
) -> None:
    nameless = LLM.model_copy(update={"model": None})
    failing = Protocol(ProviderUnavailable(problem=SECRET))
    with pytest.raises(ProviderUnavailable):
        await ask(LlmClient(failing, nameless, metrics, tracer))
    span = by_name(spans)["chat"]
    assert span.attributes is not None
    assert span.attributes["error.type"] == "provider_unavailable"
    assert not span.events
    assert SECRET not in span.to_json()
