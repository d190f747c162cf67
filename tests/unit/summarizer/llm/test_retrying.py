"""Retries of calls: which, how often, and how long."""

import asyncio
from datetime import UTC, datetime
from itertools import pairwise

import httpx
import pytest

from afterword.streams.errors import (
    AnswerInvalid,
    ConfigurationError,
    ContextExceeded,
    PromptRefused,
    ProviderError,
    ProviderMisconfigured,
    ProviderRateLimited,
    ProviderUnavailable,
)
from afterword.streams.http import failure, retry_after_seconds
from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm import ChatRequest, context_tokens
from afterword.streams.summarizer.retrying import retrying
from tests.doubles.llm import a_provider

NOW = datetime(2026, 1, 5, 12, 0, 0, tzinfo=UTC)


def failed(response: httpx.Response) -> ProviderError:
    return failure(response, response.content, {"messages": [], "temperature": 0.2, "max_tokens": 64})


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        (" 1.5 ", 1.5),
        ("Mon, 05 Jan 2026 12:00:30 GMT", 30.0),
        ("Mon, 05 Jan 2026 11:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("nan", None),
        ("Mon, 05 Jan 99999999999 12:00:00 GMT", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(value, NOW) == seconds


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (429, ProviderRateLimited),
        (500, ProviderUnavailable),
        (503, ProviderUnavailable),
        (408, ProviderUnavailable),
        (401, ProviderMisconfigured),
        (403, ProviderMisconfigured),
        (404, ProviderMisconfigured),
        (301, ProviderMisconfigured),
        (400, ProviderMisconfigured),
        (422, ProviderMisconfigured),
    ],
)
def test_each_status_has_one_meaning(status: int, error: type[ProviderError]) -> None:
    assert type(failed(httpx.Response(status, text="whatever"))) is error


@pytest.mark.parametrize(
    "error",
    [
        # llama.cpp, whose code is a number; OpenAI; vLLM
        {
            "code": 400,
            "type": "exceed_context_size_error",
            "message": "too long",
            "n_prompt_tokens": 9031,
            "n_ctx": 4096,
        },
        {"code": "context_length_exceeded", "message": "x", "param": "messages"},
        {"type": "BadRequestError", "message": "This model's maximum context length is 4096 tokens. However, you …"},
    ],
)
def test_prompt_beyond_the_context_has_its_own_reason(error: dict[str, object]) -> None:
    found = failed(httpx.Response(400, json={"error": error}))
    assert (type(found), found.error_type) == (ContextExceeded, "context_exceeded")
    assert "AFTERWORD_LLM__CONTEXT_TOKENS" in str(found)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"message": "prompt is too long: 210041 tokens > 200000 maximum"}}),
        (400, {"error": {"message": "Input is too long for requested model."}}),
        (400, {"message": "The decoder prompt (length 5210) is longer than the maximum model length of 4096."}),
        (422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"}),
        (400, {"error": {"message": "The input token count (1200000) exceeds the maximum number of tokens allowed"}}),
        (400, {"detail": "Requested tokens (5000) exceed context window of 4096"}),
        (400, {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081"}),
        (400, {"error": {"message": "This model's maximum prompt length is 131072 but it contains 140001 tokens."}}),
        (400, {"message": "Range of input length should be [1, 30720]", "code": "InvalidParameter"}),
        (422, {"detail": [{"msg": "prompt has 9000 tokens, max allowed is 8000", "loc": ["body"]}]}),
        (500, {"error": "the input length exceeds the context length"}),
        (400, {"error": {"message": "提示词长度超过模型最大上下文长度"}}),
        (400, {"message": "Malformed input request: expected maxLength: 2000, actual: 5000"}),
        (400, {"error": "the prompt (9000 tokens) does not fit into n_ctx = 4096"}),
        (400, {"message": "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000"}),
        (400, {"message": "too large: 1900. The maximum context length is 4096 tokens", "param": "max_tokens"}),
        (413, {}),
    ],
)
def test_every_servers_overlong_prompt_error_is_known(status: int, body: dict[str, object]) -> None:
    assert type(failed(httpx.Response(status, json=body))) is ContextExceeded


@pytest.mark.parametrize(
    "error",
    [
        {"message": "max_tokens is too large: 5000. At most 4096 completion tokens.", "param": "max_tokens"},
        {"message": "Invalid 'temperature': decimal above maximum value. Expected a value <= 2."},
        {"message": "messages: at least one message is required"},
        {"loc": ["body", "temperature"], "msg": "Input should be less than or equal to 2"},
        {"message": "context deadline exceeded"},
        {"__type": "ThrottlingException", "message": "Too many tokens, please wait before trying again."},
        {"message": "ExceededTokenBudget: Current spend for token: 7.2e-05; Max Budget for Token: 2e-07"},
        {"message": "The maximum tokens you requested exceeds the model limit of 4096."},
    ],
)
def test_other_refusal_is_not_about_length(error: dict[str, object]) -> None:
    assert type(failed(httpx.Response(400, json={"error": error}))) is not ContextExceeded


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
