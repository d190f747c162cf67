"""Contract of every provider, the real ones and the fakes."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm import PROTOCOLS
from afterword.streams.summarizer.providers import Provider
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import SummaryRequest
from afterword_text.tokens import count_tokens
from tests.doubles.llm import a_provider
from tests.doubles.provider import ScriptedProvider
from tests.openai_server import MODEL, LlmServer
from tests.samples import a_closed_episode, an_episode_message

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
