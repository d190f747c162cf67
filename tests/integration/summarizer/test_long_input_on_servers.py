"""Episodes of any length, with servers that refuse more than their model's context."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio
from aiohttp import web

from afterword.schemas import EpisodeClosed
from afterword.streams.settings import Llm
from afterword.streams.settings import SummarizerSettings as SummarizerSettings
from afterword.streams.summarizer.providers import LlmProvider, Provider
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import SummaryRequest
from afterword.streams.text.tokens import TOKENIZER_MARGIN, count_tokens
from tests import openai_server as llm
from tests.doubles.llm import a_provider
from tests.openai_server import LlmServer
from tests.unit.summarizer.conversations import an_episode_of

pytestmark = pytest.mark.nightly

CONTEXT = 8000
FACTS = [f"Fact number {n} is that code K{n * 37} was agreed." for n in range(24)]


def limited(server: LlmServer) -> llm.Outcome:
    """Answer like a model with a context of CONTEXT tokens and a tokenizer that counts more than ours."""

    async def respond(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        output = body.get("max_tokens") or body["options"]["num_predict"]
        prompt = sum(count_tokens(message["content"]) for message in body["messages"])
        if prompt * TOKENIZER_MARGIN + output > CONTEXT:
            return await llm.fails(400, {"code": "context_length_exceeded"})(request)
        return await answer(body)(request)

    return respond


def answer(body: dict[str, Any]) -> llm.Outcome:
    """Answer in JSON or plain text, as requested, with all facts from the prompt."""
    prompt = body["messages"][-1]["content"]
    read = [fact for fact in FACTS if fact in prompt]
    structured = "response_format" in body or "format" in body
    told = " ".join(read) or "Nothing new."
    return llm.answers(orjson.dumps({**llm.TEXTS, "long_summary": told}).decode() if structured else told)


@pytest_asyncio.fixture(params=["openai", "ollama", "openai plain text"])
async def provider(request: pytest.FixtureRequest, llm_server: LlmServer) -> AsyncIterator[Provider]:
    name, _, plain = request.param.partition(" ")
    settings = Llm.model_validate(
        {
            "provider": name,
            "base_url": llm_server.url + ("/v1" if name == "openai" else ""),
            "model": llm.MODEL,
            "context_tokens": CONTEXT,
        }
    )
    summarizer = SummarizerSettings(preset="plain_3_5" if plain else "episodic")
    provider = a_provider(settings, summarizer)
    assert isinstance(provider, LlmProvider)
    made = Summarizer(provider, room=provider.room)
    yield made
    await made.close()


def long_episode() -> EpisodeClosed:
    return an_episode_of(*[("user", f"{fact} " + "So it goes on and on. " * 100) for fact in FACTS])


async def test_every_message_of_a_long_episode_is_read_and_none_of_the_calls_is_refused(
    llm_server: LlmServer, provider: Provider
) -> None:
    llm_server.script(*[limited(llm_server)] * 200)
    summary = await provider.summarize(SummaryRequest(long_episode(), "Before.", 800))
    assert (summary.quality.source, summary.quality.truncated) == ("llm", False)
    prompts = [request.prompt for request in llm_server.requests]
    assert len(prompts) > 3
    assert [fact for fact in FACTS if not any(fact in prompt for prompt in prompts)] == []
    assert summary.usage.prompt_tokens == llm.PROMPT_TOKENS * len(prompts)
    assert summary.rolling_summary


async def test_a_huge_message_is_read_where_it_begins_and_where_it_ends(
    llm_server: LlmServer, provider: Provider
) -> None:
    llm_server.script(*[limited(llm_server)] * 200)
    text = f"{FACTS[0]} {'It goes on and on. ' * 36_000} {FACTS[1]}"
    summary = await provider.summarize(SummaryRequest(an_episode_of(("user", text)), "", 800))
    assert summary.quality.truncated
    prompt = llm_server.requests[0].prompt
    assert FACTS[0] in prompt
    assert FACTS[1] in prompt
    assert "characters left out …]" in prompt
