"""Every way in which an LLM's server can behave, and the outcome for the episode."""

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from afterword.schemas.summaries import total
from afterword.streams.errors import (
    AnswerInvalid,
    ProviderError,
    ProviderMisconfigured,
    ProviderUnavailable,
)
from afterword.streams.settings import Llm
from afterword.streams.summarizer.providers import Provider
from afterword.streams.summarizer.summary import SummaryRequest
from tests import openai_server as llm
from tests.doubles.llm import a_provider
from tests.openai_server import LlmServer
from tests.samples import a_closed_episode, an_episode_message

SECRET = "my password is hunter2"
KEY = "sk-not-a-key"
REQUEST = SummaryRequest(a_closed_episode(messages=(an_episode_message("m1", content=SECRET),)), "Earlier words.", 800)
PROTOCOLS = ("openai", "ollama")


@pytest.fixture(params=PROTOCOLS)
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
