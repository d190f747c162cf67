"""Metrics and spans of requests to an LLM."""

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracer, Tracer

from afterword.schemas import Usage
from afterword.streams.errors import AnswerInvalid, ProviderRateLimited, ProviderUnavailable
from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm import ANSWERS, Asking, ChatRequest, LlmClient, Reply
from afterword.streams.summarizer.retrying import retrying
from afterword.streams.telemetry.metrics import Metrics

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
