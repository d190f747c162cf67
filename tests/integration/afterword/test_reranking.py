"""Recall with rerankers over HTTP: servers of every form, hostile ones, and an LLM."""

import asyncio
import gzip
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from structlog.testing import capture_logs

from afterword import Memory
from afterword.checks import check_reranker
from afterword.recalling.opening import make_reranker
from afterword.recalling.third_stage import RankedDocument, RankingQuestion, Reranker, ThirdStage
from afterword.streams.errors import AfterwordError, ConfigurationError, ProviderError, ProviderMisconfigured
from afterword.streams.settings import Settings
from afterword.streams.summarizer.llm.http import MOST_RESPONSE_BYTES
from afterword.streams.telemetry import Metrics
from tests.doubles.llm import unread
from tests.doubles.reranker import FORMS, KEY, MODEL, Answer, Form, RerankServer, reranking, says, scores
from tests.doubles.stores import MemoryBudgets
from tests.openai_server import COMPLETION_TOKENS, PROMPT_TOKENS, LlmServer, answers, fails, llm_server
from tests.openai_server import MODEL as LLM_MODEL
from tests.samples import NOON
from tests.unit.afterword.memory.remembered import Remembered

__all__ = ["llm_server"]

OWNER: dict[str, Any] = {"user_id": "u1", "tenant_id": "t1"}
QUERY = "blue boat from the harbour"


def of_endpoint(server: RerankServer, **changed: Any) -> Settings:
    api = "tei" if server.form == "tei" else "cohere"
    reranker = {"base_url": server.url, "model": MODEL, "api_key": KEY, "api": api, "timeout_seconds": 5, **changed}
    return Settings.model_validate({"recall": {"rerank": "endpoint"}, "reranker": reranker})


def of_llm(server: LlmServer, provider: str, **changed: Any) -> Settings:
    url = server.url + ("/v1" if provider == "openai" else "")
    llm = {"provider": provider, "base_url": url, "model": LLM_MODEL}
    given = {"recall": {"rerank": "llm"}, "llm": llm, "reranker": {"llm_timeout_seconds": 5, **changed}}
    return Settings.model_validate(given)


@asynccontextmanager
async def opened(settings: Settings, metrics: Metrics | None = None) -> AsyncIterator[Reranker]:
    reranker = make_reranker(settings, None, metrics)
    assert reranker is not None
    try:
        yield reranker
    finally:
        await reranker.close()


async def asked(settings: Settings, *texts: str) -> list[int]:
    async with opened(settings) as reranker:
        return await reranker.order(RankingQuestion(QUERY, [RankedDocument(text, NOON) for text in texts], "t1"))


@pytest_asyncio.fixture(params=FORMS)
async def rerank_server(request: pytest.FixtureRequest) -> AsyncIterator[RerankServer]:
    form: Form = request.param
    async with reranking(form) as server:
        yield server


async def test_servers_of_every_form_put_documents_in_order(rerank_server: RerankServer) -> None:
    settings = of_endpoint(rerank_server)
    assert await asked(settings, "A car.", "The boat from the harbour.", "A boat.") == [1, 2, 0]
    assert len(rerank_server.requests) == 1
    assert (await check_reranker(settings)).startswith("endpoint 127.0.0.1:")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[RerankServer]:
    async with reranking() as started:
        yield started


@pytest_asyncio.fixture
async def world() -> Remembered:
    """Three conversations; the second shares most words with QUERY, but for those that BM25 leaves out."""
    world = Remembered()
    for n, text in enumerate(("Blue boat, harbour.", "From the boat of the harbour.", "A boat is here.")):
        await world.summarise(await world.say(text, "Aye.", conversation_id=f"c{n}"))
    return world


async def test_recall_follows_the_server_which_sees_no_ids(world: Remembered, server: RerankServer) -> None:
    before = await world.memory.recall(QUERY, **OWNER)
    async with opened(of_endpoint(server)) as reranker:
        hits = await recalled(world, reranker)
    assert [hit.conversation_id for hit in before] == ["c0", "c1", "c2"]
    assert [hit.conversation_id for hit in hits] == ["c1", "c0", "c2"]
    assert all(hit.matching_ids for hit in hits)
    (request,) = server.requests
    assert request.keys() == {"model", "query", "documents", "top_n"}
    assert not any(hit.conversation_id in str(request) or hit.message_ids[0] in str(request) for hit in hits)


async def recalled(world: Remembered, reranker: Reranker, metrics: Metrics | None = None) -> list[Any]:
    third_stage = ThirdStage(reranker, world.messages, 2000, metrics=metrics)
    memory = Memory(world.episodes, world.messages, world.index.search, third_stage=third_stage)
    return await memory.recall(QUERY, **OWNER)


async def never(request: web.Request) -> web.StreamResponse:
    while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110 – the client's end
        await asyncio.sleep(0.02)
    return web.Response()


async def trickles(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while request.transport is not None and not request.transport.is_closing():
        await response.write(b" ")
        await asyncio.sleep(0.02)
    return response


async def cuts(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


HOSTILE: dict[str, tuple[Answer, str]] = {
    "10 MB": (says(b'{"results": [' + b" " * 10_000_000), "answer_invalid"),
    "a bomb": (says(gzip.compress(b" " * 100_000_000), content_encoding="gzip"), "answer_invalid"),
    "another encoding": (says(b"x", content_encoding="br"), "answer_invalid"),
    "nested": (says(b"[" * 1_000_000), "answer_invalid"),
    "NaN": (says(scores((0, "NaN"), (1, 1), (2, 1))), "answer_invalid"),
    "a negative place": (says(scores((-1, 1), (1, 1))), "answer_invalid"),
    "too many": (says(scores(*((n, 1) for n in range(9)))), "answer_invalid"),
    "nothing": (says(b""), "answer_invalid"),
    "a page": (says(b"<html>"), "answer_invalid"),
    "500": (says(b"{}", 500), "provider_unavailable"),
    "429": (says(b"{}", 429, retry_after="3"), "provider_rate_limited"),
    "401": (says(b"{}", 401), "provider_misconfigured"),
    "404": (says(b"{}", 404), "provider_misconfigured"),
    "400": (says(b'{"message": "blue boat"}', 400), "provider_error"),
    "a redirection": (says(b"", 302, location="http://127.0.0.1:9/"), "provider_misconfigured"),
    "silent": (never, "provider_unavailable"),
    "trickling": (trickles, "provider_unavailable"),
    "cut off": (cuts, "provider_unavailable"),
}


@pytest.mark.parametrize(("answer", "outcome"), HOSTILE.values(), ids=HOSTILE)
async def test_whatever_a_server_answers_recall_does_too(
    world: Remembered, server: RerankServer, answer: Answer, outcome: str
) -> None:
    before = await world.memory.recall(QUERY, **OWNER)
    server.answer, metrics = answer, unread()
    began = time.monotonic()
    tracemalloc.start()
    try:
        with capture_logs() as logs:
            async with opened(of_endpoint(server, timeout_seconds=1)) as reranker:
                hits = await recalled(world, reranker, metrics)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert hits == before
    assert time.monotonic() - began < 20
    assert peak < 12 * MOST_RESPONSE_BYTES
    assert len(server.requests) == 1
    (logged,) = logs
    assert (logged["event"], logged["error_type"]) == ("reranking_failed", outcome)
    assert not {"blue", "boat", KEY} & set(str(logged).replace("'", " ").split())
    assert metrics.registry.get_sample_value("afterword_rerankings_total", {"outcome": outcome}) == 1
    assert metrics.registry.get_sample_value("afterword_reranking_duration_seconds_count") == 1


async def test_a_server_that_is_not_there_stops_nothing(world: Remembered, closed_port: int) -> None:
    before = await world.memory.recall(QUERY, **OWNER)
    given = {"recall": {"rerank": "endpoint"}, "reranker": {"base_url": f"http://127.0.0.1:{closed_port}"}}
    settings = Settings.model_validate(given)
    async with opened(settings) as reranker:
        assert await recalled(world, reranker) == before
    with pytest.raises(ProviderError, match="ConnectError"):
        await check_reranker(settings)


async def test_the_check_says_what_is_wrong(server: RerankServer) -> None:
    with pytest.raises(ProviderMisconfigured, match="does not accept the API key"):
        await check_reranker(of_endpoint(server, api_key="another"))
    assert await check_reranker(Settings()) == "passages"
    with pytest.raises(ConfigurationError, match="AFTERWORD_LLM__PROVIDER"):
        await check_reranker(Settings.model_validate({"recall": {"rerank": "llm"}}))
    with pytest.raises(ConfigurationError, match="AFTERWORD_RERANKER__BASE_URL"):
        Memory.from_settings(Settings.model_validate({"recall": {"rerank": "endpoint"}}))


@pytest.mark.parametrize("provider", ["openai", "ollama"])
async def test_recall_follows_the_llm_which_counts_its_tokens(
    world: Remembered, llm_server: LlmServer, provider: str
) -> None:
    before = await world.memory.recall(QUERY, **OWNER)
    llm_server.usual, metrics = answers("Sure: [3, 1]"), unread()
    settings = of_llm(llm_server, provider)
    async with opened(settings, metrics) as reranker:
        hits = await recalled(world, reranker, metrics)
    assert [hit.conversation_id for hit in hits] == [before[place].conversation_id for place in (2, 0, 1)]
    (request,) = llm_server.requests
    assert "A boat is here." in request.prompt
    assert QUERY in request.prompt
    tokens = [
        metrics.registry.get_sample_value("afterword_llm_tokens_total", {"type": of}) for of in ("prompt", "completion")
    ]
    assert tokens == [PROMPT_TOKENS, COMPLETION_TOKENS]
    assert (await check_reranker(settings)).startswith(f"llm {provider}")


@pytest.mark.parametrize(
    ("outcome", "error_type"),
    [
        (answers("I would rather not."), "answer_invalid"),
        (answers("[1, 2", finish="length"), "answer_invalid"),
        (answers("[" * 3_000_000), "answer_invalid"),
        (fails(500), "provider_unavailable"),
        (fails(429, retry_after="9"), "provider_rate_limited"),
    ],
)
async def test_whatever_the_llm_answers_recall_does_too(
    world: Remembered, llm_server: LlmServer, outcome: Any, error_type: str
) -> None:
    before = await world.memory.recall(QUERY, **OWNER)
    llm_server.usual, metrics = outcome, unread()
    async with opened(of_llm(llm_server, "openai"), metrics) as reranker:
        assert await recalled(world, reranker, metrics) == before
    assert len(llm_server.requests) == 1
    assert metrics.registry.get_sample_value("afterword_rerankings_total", {"outcome": error_type}) == 1


async def test_an_llm_that_hangs_is_left_after_its_time(world: Remembered, llm_server: LlmServer) -> None:
    before = await world.memory.recall(QUERY, **OWNER)
    llm_server.usual = llm_server.hangs()
    began = time.monotonic()
    async with opened(of_llm(llm_server, "openai", llm_timeout_seconds=0.3)) as reranker:
        assert await recalled(world, reranker) == before
    assert time.monotonic() - began < 20


async def test_an_order_counts_in_the_budget_of_the_hour(llm_server: LlmServer) -> None:
    llm_server.usual, budgets, metrics = answers("[2, 1]"), MemoryBudgets(), unread()
    given = of_llm(llm_server, "openai").model_dump() | {"budget": {"tenant_tokens_per_hour": 300}}
    question = RankingQuestion(QUERY, [RankedDocument("A boat.", NOON)] * 2, "t1")
    reranker = make_reranker(Settings.model_validate(given), budgets, metrics)
    assert reranker is not None
    try:
        assert await reranker.order(question) == [1, 0]
        [(key, used)] = budgets.counters.items()
        assert (key.endswith("/t1"), used) == (True, PROMPT_TOKENS + COMPLETION_TOKENS)
        await reranker.order(question)
        with pytest.raises(AfterwordError, match="budget of a tenant is used up"):
            await reranker.order(question)
    finally:
        await reranker.close()
    assert len(llm_server.requests) == 2
    assert metrics.registry.get_sample_value("afterword_budget_refusals_total", {"budget": "tenant"}) == 1
