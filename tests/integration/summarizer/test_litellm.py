"""LiteLLM's proxy itself, between a scripted server and the summarizer. `make test-all` installs it."""

import os
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import yaml
from aiohttp import web
from opentelemetry.trace import NoOpTracer

from afterword.embedded import Process
from afterword.embedded.claims import free_ports
from afterword.schemas.summaries import Calls
from afterword.streams import errors
from afterword.streams.errors import (
    AnswerInvalid,
    PromptFailed,
    PromptRefused,
    ProviderError,
    ProviderMisconfigured,
    ProviderRateLimited,
    ProviderUnavailable,
)
from afterword.streams.settings import Settings
from afterword.streams.summarizer.summarizer import Summarizer, make_summarizer
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from tests.doubles.llm import unread
from tests.doubles.stores import MemoryBudgets
from tests.openai_server import MODEL, TEXTS, LlmServer, Outcome, after, answers, fails, running_server, success
from tests.samples import a_closed_episode, an_episode_message
from tests.waiting import until

PROGRAM = Path(__file__).parents[3] / "build" / "litellm-venv" / "bin" / "litellm"
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not PROGRAM.exists(), reason="LiteLLM is not installed: make test-all"),
]

KEY = "sk-of-the-tests"
START_SECONDS = 180
SAID = "Please cancel my order 4711."
HALF = "The user asked to cancel order 4711. The assistant cancelled it and said that the refund"


@dataclass
class Proxy:
    url: str
    upstream: LlmServer
    opened: list[Summarizer] = field(default_factory=list)

    def summarizer(self, budgets: Any = None, preset: str = "episodic", **llm: Any) -> Summarizer:
        server = {"provider": "openai", "base_url": self.url, "model": "m", "api_key": KEY}
        retries = {"attempts": 2, "retry_budget_seconds": 2.0}
        settings = Settings.model_validate(
            {
                "llm": {**server, **retries, **llm},
                "summarizer": {"preset": preset},
                "budget": {"tokens_per_hour": 3000} if budgets else {},
            }
        )
        self.opened.append(make_summarizer(settings, budgets, unread(), NoOpTracer()))
        return self.opened[-1]

    @property
    def questions(self) -> int:
        return len(self.upstream.requests)


@pytest_asyncio.fixture(scope="module")
async def proxy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proxy]:
    folder, [port] = tmp_path_factory.mktemp("litellm"), free_ports(1)
    async with running_server() as upstream:
        served = {"model": f"openai/{MODEL}", "api_base": f"{upstream.url}/v1", "api_key": "upstream"}
        models = {"m": served, "impatient": {**served, "timeout": 1}}
        config = {
            "model_list": [{"model_name": name, "litellm_params": params} for name, params in models.items()],
            "general_settings": {"master_key": KEY},
            "router_settings": {"num_retries": 0, "disable_cooldowns": True},  # as docs/how-to/llm.md says
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        command = [str(PROGRAM), "--config", str(folder / "config.yaml"), "--host", "127.0.0.1", "--port", str(port)]
        environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1"}
        process = Process("litellm", command, folder / "log", environment=environment)
        try:
            async with httpx.AsyncClient(trust_env=False) as client:

                async def is_alive() -> bool:
                    try:
                        return (await client.get(f"http://127.0.0.1:{port}/health/liveliness")).status_code == 200
                    except httpx.TransportError:
                        return False

                await until(is_alive, seconds=START_SECONDS)
            yield Proxy(f"http://127.0.0.1:{port}/v1", upstream)
        finally:
            process.kill()


@pytest_asyncio.fixture(autouse=True)
async def reset(proxy: Proxy) -> AsyncIterator[None]:
    proxy.upstream.usual = success()
    proxy.upstream.scripts.clear()
    proxy.upstream.requests.clear()
    yield
    while proxy.opened:
        await proxy.opened.pop().close()


async def summary_of(summarizer: Summarizer, said: str = SAID, calls: list[Calls] | None = None) -> Summary:
    answer = an_episode_message("m2", role="assistant", content="It is cancelled. The refund takes three days.")
    episode = a_closed_episode(messages=(an_episode_message("m1", content=said), answer))
    request = SummaryRequest(episode, "", 800, calls=[] if calls is None else calls)
    return await summarizer.summarize_without_fallback(request)


def real_prompts(outcome: Outcome) -> Outcome:
    """Treat real prompts in this way, and answer the test question."""

    async def respond(request: web.Request) -> web.StreamResponse:
        asked = str((await request.json())["messages"])
        return await (answers("yes") if "Answer with yes." in asked else outcome)(request)

    return respond


async def test_good_answer_is_a_summary(proxy: Proxy) -> None:
    summary = await summary_of(proxy.summarizer())
    assert (summary.long_summary, summary.quality.source) == (TEXTS["long_summary"], "llm")
    assert summary.usage.prompt_tokens == 120


@pytest.mark.parametrize("reason", ["abort", "model_length", "incomplete", "network_error", "max_tokens"])
async def test_interrupted_answer_is_no_summary(proxy: Proxy, reason: str) -> None:
    proxy.upstream.usual = answers(HALF, reason)
    calls: list[Calls] = []
    with pytest.raises(AnswerInvalid, match="cut off"):
        await summary_of(proxy.summarizer(preset="plain_3_5"), calls=calls)
    assert {one.outcome for one in calls} == {"cut_off"}


async def test_wait_that_the_upstream_asks_for_is_kept(proxy: Proxy) -> None:
    proxy.upstream.usual = fails(429, {"message": "Rate limit reached", "type": "tokens"}, retry_after="20")
    summarizer = proxy.summarizer()
    with pytest.raises(ProviderRateLimited) as raised:
        await summary_of(summarizer)
    assert raised.value.retry_after == pytest.approx(20)
    for asks in (summarizer.check, lambda: summary_of(summarizer)):
        with pytest.raises(ProviderRateLimited):
            await asks()
    assert proxy.questions == 1


async def test_revoked_key_stops_all_questions_until_it_is_back(proxy: Proxy) -> None:
    proxy.upstream.usual = fails(401, {"message": "Incorrect API key provided", "code": "invalid_api_key"})
    summarizer = proxy.summarizer()
    for _ in range(10):
        with pytest.raises(ProviderMisconfigured):
            await summary_of(summarizer)
    assert proxy.questions == 1
    proxy.upstream.usual = success()

    async def answers_again() -> bool:
        try:
            return bool(await summary_of(summarizer))
        except ProviderMisconfigured:
            return False

    await until(answers_again)


async def test_slow_answer_is_not_a_refusal_of_its_prompt(proxy: Proxy) -> None:
    proxy.upstream.usual = real_prompts(after(3, success()))
    with pytest.raises(PromptFailed, match="408"):
        await summary_of(proxy.summarizer(model="impatient"))
    proxy.upstream.usual = real_prompts(success())
    assert (await summary_of(proxy.summarizer(model="impatient"))).quality.source == "llm"


FILTERED = fails(400, {"message": "The response was filtered", "code": "content_filter", "param": "prompt"})
TOO_LONG = fails(
    400,
    {
        "message": "This model's maximum context length is 4096 tokens. However, your messages have 9000 tokens.",
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
    },
)
NO_MODEL = fails(404, {"message": "The model does not exist", "code": "model_not_found"})


@pytest.mark.parametrize(
    ("outcome", "error", "never"),
    [
        (real_prompts(FILTERED), "PromptRefused", "does not know this model"),
        (real_prompts(fails(503, {"message": "overloaded"})), "PromptFailed", "refused"),
        (real_prompts(fails(500, {"message": "internal"})), "PromptFailed", "refused"),
        (real_prompts(TOO_LONG), "ContextExceeded", "does not know this model"),
        (NO_MODEL, "ProviderMisconfigured", "took longer"),
    ],
    ids=["filter", "overload", "internal", "context", "model"],
)
async def test_error_of_the_upstream_keeps_its_meaning(proxy: Proxy, outcome: Outcome, error: str, never: str) -> None:
    proxy.upstream.usual = outcome
    with pytest.raises(ProviderError) as raised:
        await summary_of(proxy.summarizer())
    assert type(raised.value) is getattr(errors, error)
    assert never not in str(raised.value)


@pytest.mark.parametrize(
    ("llm", "says"), [({"model": "none"}, "model"), ({"api_key": "sk-another"}, "no_db_connection")]
)
async def test_mistake_in_the_settings_is_named_and_stops_asking(proxy: Proxy, llm: dict[str, str], says: str) -> None:
    summarizer = proxy.summarizer(**llm)
    for _ in range(2):
        with pytest.raises(ProviderUnavailable, match=says):
            await summary_of(summarizer)
    assert proxy.questions == 0


async def test_upstream_without_usage_uses_up_the_budget(proxy: Proxy) -> None:
    async def without_usage(request: web.Request) -> web.StreamResponse:
        said = await success()(request)
        assert isinstance(said, web.Response)
        assert isinstance(said.body, bytes)
        body = said.body.replace(b'"usage"', b'"unused"')
        return web.Response(body=body, content_type="application/json")

    proxy.upstream.usual = without_usage
    summarizer = proxy.summarizer(MemoryBudgets())
    summary = await summary_of(summarizer)
    assert summary.usage.prompt_tokens > 100
    await summary_of(summarizer)
    with pytest.raises(errors.BudgetExhausted):
        await summary_of(summarizer)


async def test_refused_prompt_leaves_others_their_summaries(proxy: Proxy) -> None:
    proxy.upstream.scripts["kayak"] = deque([FILTERED] * 9)
    summarizer = proxy.summarizer()
    with pytest.raises(PromptRefused):
        await summary_of(summarizer, "The kayak is green.")
    assert (await summary_of(summarizer)).quality.source == "llm"
