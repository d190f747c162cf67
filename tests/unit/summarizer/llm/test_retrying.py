"""Retries of calls: which, how often, and how long."""

import asyncio
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from afterword.streams.errors import (
    AnswerInvalid,
    ConfigurationError,
    PromptRefused,
    ProviderError,
    ProviderRateLimited,
    ProviderUnavailable,
)
from afterword.streams.http import retry_after_seconds
from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm import ChatRequest, context_tokens
from afterword.streams.summarizer.retrying import retrying
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
