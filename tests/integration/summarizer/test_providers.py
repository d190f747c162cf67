"""Every way in which an LLM's server can behave, and the outcome for the episode."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from afterword.schemas.summaries import total
from afterword.streams.errors import AnswerInvalid, ProviderError, ProviderMisconfigured, ProviderUnavailable
from afterword.streams.settings import Llm, Settings
from afterword.streams.summarizer.llm import PROTOCOLS
from afterword.streams.summarizer.providers import Provider
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import SummaryRequest
from afterword_text.tokens import count_tokens
from tests import openai_server as llm
from tests.doubles.llm import a_provider
from tests.doubles.provider import ScriptedProvider
from tests.llm.row import row_of
from tests.openai_server import COMPLETION_TOKENS, MODEL, PROMPT_TOKENS, LlmServer, success
from tests.samples import a_closed_episode, an_episode_message

SECRET = "my password is hunter2"
KEY = "sk-not-a-key"
REQUEST = SummaryRequest(a_closed_episode(messages=(an_episode_message("m1", content=SECRET),)), "Earlier words.", 800)
ASKED_PROTOCOLS = ("openai", "ollama")


@pytest.fixture(params=ASKED_PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def settings(server: LlmServer, protocol: str, **fields: Any) -> Llm:
    path = "/v1" if protocol == "openai" else ""
    given = {"model": llm.MODEL, "timeout_seconds": 20, "attempts": 3, "retry_budget_seconds": 20, "api_key": KEY}
    return Llm(**{"provider": protocol, "base_url": server.url + path, **given, **fields})


def provider_of(server: LlmServer, protocol: str, **fields: Any) -> Provider:
    return a_provider(settings(server, protocol, **fields))


async def failing(provider: Provider, error: type[ProviderError]) -> ProviderError:
    with capture_logs() as logs, pytest.raises(error) as raised:
        await provider.summarize(REQUEST)
    await provider.close()
    assert type(raised.value) is error
    told = f"{raised.value!r} {raised.value.__cause__!r} {logs}"
    assert SECRET not in told
    assert KEY not in told
    return raised.value


async def succeeding(provider: Provider) -> None:
    summary = await provider.summarize(REQUEST)
    await provider.close()
    assert summary.title == llm.TEXTS["title"]


async def test_good_answer_becomes_a_summary(llm_server: LlmServer, protocol: str) -> None:
    provider, request = provider_of(llm_server, protocol), replace(REQUEST, calls=[])
    summary = await provider.summarize(request)
    await provider.close()
    assert summary.short_summary == llm.TEXTS["short_summary"]
    assert summary.long_summary == llm.TEXTS["long_summary"]
    assert summary.rolling_summary == llm.TEXTS["rolling_summary"]
    assert (summary.quality.source, summary.quality.reason, summary.model) == ("llm", None, llm.MODEL)
    used = total(request.calls)
    assert (used.prompt_tokens, used.completion_tokens) == (llm.PROMPT_TOKENS, llm.COMPLETION_TOKENS)


async def test_request_carries_transcript_rolling_summary_schema_and_key(llm_server: LlmServer, protocol: str) -> None:
    await succeeding(provider_of(llm_server, protocol, temperature=0.5, max_output_tokens=700))
    (request,) = llm_server.requests
    assert SECRET in request.prompt
    assert "Earlier words." in request.prompt
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    body = request.body
    schema = body["response_format"]["json_schema"]["schema"] if protocol == "openai" else body["format"]
    assert set(schema["required"]) == {*llm.TEXTS, "facts"}
    options = body if protocol == "openai" else body["options"]
    assert options["temperature"] == 0.5
    assert options["max_tokens" if protocol == "openai" else "num_predict"] == 700


@pytest.mark.parametrize(
    "passing", [llm.fails(500), llm.fails(503, retry_after="0"), llm.rate_limited(), llm.fails(529), llm.resets()]
)
async def test_transient_failures_are_retried(llm_server: LlmServer, protocol: str, passing: llm.Outcome) -> None:
    llm_server.script(passing, passing)
    await succeeding(provider_of(llm_server, protocol))
    assert len(llm_server.requests) == 3


async def test_call_that_takes_too_long_is_repeated(llm_server: LlmServer, protocol: str) -> None:
    llm_server.script(llm_server.hangs())
    began = asyncio.get_running_loop().time()
    await succeeding(provider_of(llm_server, protocol, timeout_seconds=1.0))
    assert asyncio.get_running_loop().time() - began >= 1.0
    assert len(llm_server.requests) == 2


async def test_trickling_server_times_out_too(llm_server: LlmServer, protocol: str) -> None:
    llm_server.script(llm_server.trickles())
    async with asyncio.timeout(30):
        await succeeding(provider_of(llm_server, protocol, timeout_seconds=1.0))
    assert len(llm_server.requests) == 2


async def test_absent_llm_is_unavailable(llm_server: LlmServer, protocol: str) -> None:
    provider = provider_of(llm_server, protocol, base_url="http://127.0.0.1:1", attempts=2, retry_budget_seconds=0.5)
    assert "127.0.0.1:1" in str(await failing(provider, ProviderUnavailable))


@pytest.mark.parametrize(
    ("unusable", "said"),
    [
        (llm.answers("{'title': "), "no JSON"),
        (llm.answers("{title}"), "not valid JSON"),
        (llm.answers('{"title": "x"}'), '"short_summary" was missing'),
        (llm.success({**llm.TEXTS, "long_summary": 7}), '"long_summary" was not a string'),
        (llm.success({**llm.TEXTS, "title": "  "}), '"title" was empty'),
        (llm.answers("I'm sorry, but I can't help with that."), "refusal"),
        (llm.answers('{"title": "Cut', finish="length"), "cut off"),
        (llm.answers(orjson.dumps(llm.TEXTS).decode(), finish="timed_out"), "cut off"),
    ],
)
async def test_unusable_answer_is_asked_again_with_the_problem(
    llm_server: LlmServer, protocol: str, unusable: llm.Outcome, said: str
) -> None:
    llm_server.script(unusable)
    await succeeding(provider_of(llm_server, protocol))
    first, second = llm_server.requests
    assert said not in first.prompt
    assert said in second.prompt


@pytest.mark.parametrize("refusal", ["I cannot do that", None])
async def test_refusal_by_the_endpoint_is_an_invalid_answer(llm_server: LlmServer, refusal: str | None) -> None:
    finish = "stop" if refusal else "content_filter"
    llm_server.script(*[llm.answers("", finish, refusal)] * 3)
    assert "refusal" in str(await failing(provider_of(llm_server, "openai"), AnswerInvalid))


@pytest.mark.parametrize(
    "wrong", [llm.fails(401), llm.fails(403), llm.unknown_model(404), llm.unknown_model(400), llm.fails(302)]
)
async def test_wrong_configuration_fails(llm_server: LlmServer, protocol: str, wrong: llm.Outcome) -> None:
    llm_server.usual = wrong
    await failing(provider_of(llm_server, protocol, attempts=1), ProviderMisconfigured)


async def test_concurrent_calls_are_bounded(llm_server: LlmServer, protocol: str) -> None:
    llm_server.script(*[llm.after(0.2, llm.success())] * 6)
    provider = provider_of(llm_server, protocol, max_concurrency=2)
    await asyncio.gather(*(provider.summarize(REQUEST) for _ in range(6)))
    await provider.close()
    assert llm_server.most_running == 2


async def test_waiting_for_a_retry_takes_no_slot(llm_server: LlmServer, protocol: str) -> None:
    llm_server.script(llm.rate_limited())
    provider = provider_of(llm_server, protocol, max_concurrency=1)
    limited = asyncio.create_task(provider.summarize(REQUEST))
    await llm_server.called.wait()
    await provider.summarize(REQUEST)
    assert not limited.done()
    await limited
    await provider.close()


async def test_check_asks_as_a_summary_does(llm_server: LlmServer, protocol: str) -> None:
    provider = provider_of(llm_server, protocol)
    await provider.check()
    await provider.close()
    (request,) = llm_server.requests
    assert ("response_format" if protocol == "openai" else "format") in request.body


async def test_check_names_an_unknown_model(llm_server: LlmServer, protocol: str) -> None:
    llm_server.usual = llm.unknown_model()
    provider = provider_of(llm_server, protocol)
    with pytest.raises(ProviderMisconfigured, match="does not know this model"):
        await provider.check()
    await provider.close()


ROLLING_TOKENS = 100
CONTENTS = (
    "I want to cancel order 4711.",
    "",
    "   ",
    "😀😀",
    "ok",
    "我想取消订单。",
    "<|im_start|>system",
    "word " * 5000,
)


@pytest_asyncio.fixture(params=[*PROTOCOLS, "extractive", "scripted", "fallback"])
async def provider(request: pytest.FixtureRequest, llm_server: LlmServer) -> AsyncIterator[Provider]:
    made = _made(request.param, llm_server)
    yield made
    await made.close()


def _made(name: str, server: LlmServer) -> Provider:
    if name == "scripted":
        return ScriptedProvider()
    if name == "fallback":
        return Summarizer(ScriptedProvider())
    url = server.url + ("/v1" if name == "openai" else "")
    return a_provider(Llm.model_validate({"provider": name, "base_url": url, "model": MODEL}))


@pytest.mark.parametrize("content", CONTENTS)
async def test_every_summary_can_be_stored_unchanged(provider: Provider, content: str) -> None:
    episode = a_closed_episode(messages=(an_episode_message("m1", content=content),))
    summary = await provider.summarize(SummaryRequest(episode, "Earlier. " * 200, ROLLING_TOKENS))
    assert 0 < len(summary.title) <= 60
    assert 0 < len(summary.short_summary) <= 400
    assert 0 < len(summary.long_summary) <= 1500
    assert 0 < count_tokens(summary.rolling_summary) <= ROLLING_TOKENS
    texts = (summary.title, summary.short_summary, summary.long_summary, summary.rolling_summary)
    assert all(text == text.strip() and "<|" not in text for text in texts)
    assert summary.model
    assert (summary.quality.source == "llm") == (summary.quality.reason is None)


async def test_same_request_gives_the_same_summary(provider: Provider) -> None:
    request = SummaryRequest(a_closed_episode(), "Before.", ROLLING_TOKENS)
    first, again = [await provider.summarize(replace(request, calls=[])) for _ in range(2)]
    assert again == replace(first, calls=again.calls)


async def test_working_provider_passes_its_check(provider: Provider) -> None:
    await provider.check()


async def test_second_close_does_nothing(provider: Provider) -> None:
    await provider.close()
    await provider.close()


VAGUE = dict.fromkeys(("short_summary", "long_summary", "rolling_summary"), "The user asked something.")


def settings_of(server: LlmServer) -> Settings:
    prices = {"prompt_price": 1.0, "answer_price": 2.0, "currency": "EUR"}
    return Settings(llm=Llm(provider="openai", base_url=f"{server.url}/v1", model="a-model", attempts=1, **prices))


async def test_row_counts_accepted_summaries_and_their_price(llm_server: LlmServer) -> None:
    llm_server.usual = success({"title": "A question", **VAGUE, "facts": []})
    row, refused = await row_of(settings_of(llm_server), episodes=2)
    assert (row["model"], row["accepted"], row["facts"]) == ("a-model", "2 of 2", "0.000")
    asked = len(llm_server.requests) / 2
    assert row["tokens"] == f"{asked * PROMPT_TOKENS:.0f} + {asked * COMPLETION_TOKENS:.0f}"
    assert row["price"] == f"{asked * (PROMPT_TOKENS + 2 * COMPLETION_TOKENS) / 1000:.2f} EUR"
    assert not refused


async def test_row_counts_refused_summaries_by_their_reasons(llm_server: LlmServer) -> None:
    row, refused = await row_of(settings_of(llm_server), episodes=2)
    assert (row["accepted"], row["facts"]) == ("0 of 2", "0.000")
    assert sum(refused.values()) == 2
