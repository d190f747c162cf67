"""When the extractive method replaces a failing LLM, and the tests' fake LLM."""

from dataclasses import replace
from threading import get_ident
from typing import Any

import pytest
from structlog.testing import capture_logs

from afterword.schemas import Usage
from afterword.streams.errors import (
    AnswerInvalid,
    BudgetExhausted,
    PromptRefused,
    ProviderError,
    ProviderMisconfigured,
    ProviderRateLimited,
    ProviderUnavailable,
)
from afterword.streams.settings import Settings
from afterword.streams.summarizer.providers import ExtractiveProvider
from afterword.streams.summarizer.summarizer import Summarizer, waited_for
from afterword.streams.summarizer.summary import SummaryRequest
from afterword_text.gate import share_of_pairs
from tests.doubles.provider import ScriptedProvider
from tests.samples import a_closed_episode, an_episode_message, some_calls
from tests.unit.summarizer.conversations import an_episode_of

REQUEST = SummaryRequest(a_closed_episode(), "Before.", 800)


@pytest.fixture(autouse=True)
def no_calls() -> None:
    REQUEST.calls.clear()


def with_fallback(*script: ProviderError) -> Summarizer:
    return Summarizer(ScriptedProvider(script))


async def test_providers_summary_is_passed_on() -> None:
    with capture_logs() as logs:
        summary = await with_fallback().summarize(REQUEST)
    assert (summary.quality.source, summary.model) == ("llm", "scripted")
    assert logs == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ProviderUnavailable(problem="x"), "provider_unavailable"),
        (ProviderRateLimited(retry_after=9), "provider_rate_limited"),
        (AnswerInvalid(problem="x"), "answer_invalid"),
        (ProviderError(problem="x"), "provider_error"),
    ],
)
async def test_failure_becomes_a_marked_summary(error: ProviderError, reason: str) -> None:
    with capture_logs() as logs:
        summary = await with_fallback(error).summarize(REQUEST)
    assert (summary.quality.source, summary.quality.reason, summary.model) == ("fallback", reason, "extractive")
    assert [(entry["stage"], entry["error_type"]) for entry in logs] == [("summarize", reason)]


async def test_extractive_summary_is_measured_by_its_pairs() -> None:
    turns = ("user", "Where is my order 4711-22?"), ("assistant", "Order 4711-22 was delivered on Monday.")
    summary = await ExtractiveProvider().summarize(SummaryRequest(an_episode_of(*turns), "", 800))
    said = [summary.short_summary, summary.long_summary]
    assert (summary.quality.grounding, summary.quality.unsupported) == (share_of_pairs(said, turns), ())


async def test_wasted_tokens_are_counted() -> None:
    spent = Usage(prompt_tokens=30, completion_tokens=3)
    with capture_logs():
        summary = await with_fallback(AnswerInvalid(problem="x", calls=some_calls(spent))).summarize(REQUEST)
    assert summary.usage == spent


AWAY = (ProviderUnavailable(problem="x"), ProviderRateLimited(retry_after=9), ProviderMisconfigured(problem="x"))
SPENT = BudgetExhausted(whose="a tenant", limit=1)
ANSWERED = (AnswerInvalid(problem="x"), ProviderError(problem="x"), PromptRefused(problem="x"))


@pytest.mark.parametrize(
    ("on_llm_outage", "waits", "falls_back"),
    [("fallback", (), (*AWAY, SPENT, *ANSWERED)), ("wait", (*AWAY, SPENT), ANSWERED)],
)
async def test_fallback_or_waiting_follows_the_setting(
    on_llm_outage: Any, waits: tuple[ProviderError, ...], falls_back: tuple[ProviderError, ...]
) -> None:
    kinds = waited_for(Settings.model_validate({"summarizer": {"on_llm_outage": on_llm_outage}}))
    for error in waits:
        with pytest.raises(type(error)):
            await Summarizer(ScriptedProvider([error]), waits=kinds).summarize(REQUEST)
    for error in falls_back:
        with capture_logs():
            summary = await Summarizer(ScriptedProvider([error]), waits=kinds).summarize(REQUEST)
        assert summary.quality.reason == error.error_type


async def test_extractive_summary_is_always_marked() -> None:
    quality = (await ExtractiveProvider().summarize(REQUEST)).quality
    assert (quality.source, quality.reason) == ("fallback", "extractive_provider")


@pytest.mark.parametrize(("characters", "truncated"), [(1_000, False), (700_000, True)])
async def test_extractive_summary_tells_whether_the_text_was_whole(characters: int, truncated: bool) -> None:
    message = an_episode_message("m1", content="A parcel is lost. " * (characters // 18))
    request = SummaryRequest(a_closed_episode(messages=(message,)), "", 800)
    for provider in (ExtractiveProvider(), with_fallback(ProviderError(problem="x"))):
        with capture_logs():
            assert (await provider.summarize(request)).quality.truncated is truncated


async def test_other_episodes_continue_while_long_texts_are_read() -> None:
    assert await REQUEST.read(get_ident) == get_ident()
    long = an_episode_message("m1", content="x" * 10_000)
    for request in (
        replace(REQUEST, previous_rolling=long.content),
        replace(REQUEST, episode=a_closed_episode(messages=(long,))),
        replace(REQUEST, episode=a_closed_episode(overlap=(long,))),
    ):
        assert await request.read(get_ident) != get_ident()
