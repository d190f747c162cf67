"""Answers of a real LLM server in trouble: while loading, after a timeout, and beyond the tokens or the context."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from afterword.schemas.summaries import total
from afterword.streams.errors import AnswerInvalid, ContextExceeded, ProviderUnavailable
from afterword.streams.settings import Llm, SummarizerSettings
from afterword.streams.summarizer.llm import ANSWERS
from afterword.streams.summarizer.providers import Provider
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from tests.doubles.llm import a_provider
from tests.llm.conftest import CONTEXT_TOKENS, MODEL, SLOTS, Llama
from tests.llm.facts import ANSWER_TOKENS, measured, show
from tests.samples import a_closed_episode, an_episode_message

SAID = (
    "I want to cancel order 4711, it has not arrived.",
    "I am sorry. Order 4711 is cancelled. The refund takes three days.",
    "Thank you. Will it be on my card?",
)
FEW_TOKENS = 64
POLL_SECONDS = 0.01
"""Far less than a model takes that is in the page cache."""


def a_request(*contents: str) -> SummaryRequest:
    messages = tuple(an_episode_message(f"m{n}", n, content=said) for n, said in enumerate(contents or SAID))
    return SummaryRequest(a_closed_episode(messages=messages), "", 100)


async def asked(llm: Llm, request: SummaryRequest) -> Summary:
    provider = a_provider(llm)
    try:
        return await provider.summarize(request)
    finally:
        await provider.close()


async def fallen_back(llm: Llm, request: SummaryRequest) -> Summary:
    provider: Provider = a_provider(llm)
    try:
        return await Summarizer(provider).summarize(request)
    finally:
        await provider.close()


async def refusals(ask: Callable[[], Awaitable[object]]) -> list[str]:
    """Ask until there is an answer, and return the earlier errors."""
    said = []
    while True:
        try:
            await ask()
        except ProviderUnavailable as error:
            said.append(str(error))
            await asyncio.sleep(POLL_SECONDS)
        except AnswerInvalid:  # it ends at the token limit
            return said
        else:
            return said


async def test_loading_llm_server_is_unavailable(start_llama: Callable[[], Llama]) -> None:
    llama = start_llama()
    provider = a_provider(llama.settings(attempts=1, max_output_tokens=FEW_TOKENS))
    try:
        # a server that knows one model takes any name: the check asks it something, as the name is not listed
        checks, questions = refusals(provider.check), refusals(lambda: provider.summarize(a_request()))
        for said in await asyncio.gather(checks, questions):
            assert any("503" in one for one in said)
    finally:
        await provider.close()
        llama.stop()
    assert llama.process.returncode is not None


async def test_answer_that_hits_the_token_limit_is_rejected(llama: Llama) -> None:
    llm = llama.settings(max_output_tokens=FEW_TOKENS)
    request = a_request()
    with pytest.raises(AnswerInvalid, match="cut off"):
        await asked(llm, request)
    assert total(request.calls).completion_tokens == ANSWERS * FEW_TOKENS


async def test_prompt_beyond_the_context_falls_back_with_that_reason(llama: Llama) -> None:
    request = a_request("word " * CONTEXT_TOKENS)
    with pytest.raises(ContextExceeded):
        await asked(llama.settings(), request)
    summary = await fallen_back(llama.settings(), request)
    assert (summary.quality.source, summary.quality.reason) == ("fallback", "context_exceeded")


async def test_slow_call_falls_back_and_the_server_continues(llama: Llama) -> None:
    impatient = llama.settings(timeout_seconds=0.2, attempts=2, retry_budget_seconds=1)
    summary = await fallen_back(impatient, a_request())
    assert (summary.quality.source, summary.quality.reason) == ("fallback", "provider_unavailable")
    provider = a_provider(llama.settings())
    await provider.check()
    await provider.close()


async def test_more_calls_than_slots_are_all_answered(llama: Llama) -> None:
    llm = llama.settings(max_output_tokens=FEW_TOKENS, max_concurrency=3 * SLOTS)
    provider = a_provider(llm, SummarizerSettings(preset="plain_3_5"))
    requests = [a_request(*SAID, f"My number is {n}.") for n in range(3 * SLOTS)]
    answers = await asyncio.gather(*map(provider.summarize, requests), return_exceptions=True)
    await provider.close()
    assert all(isinstance(answer, Summary | AnswerInvalid) for answer in answers), answers


@pytest.mark.timeout(1800)
async def test_bad_llms_facts_are_counted_before_and_after_gate(llama: Llama) -> None:
    found = await measured(llama.settings(max_output_tokens=ANSWER_TOKENS, retry_budget_seconds=600))
    show(MODEL, found)
    assert found.kept <= found.stated
