"""Recall with rerankers over HTTP: servers of every form, and hostile ones."""

import asyncio
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
from afterword.operating.checks import check_reranker
from afterword.reading.reranking import Reranking
from afterword.streams.errors import ConfigurationError, ProviderError, ProviderMisconfigured
from afterword.streams.http import MOST_RESPONSE_BYTES
from afterword.streams.settings import Settings
from tests.doubles.reranker import FORMS, KEY, MODEL, Answer, Form, RerankServer, reranking, says, scores
from tests.unit.afterword.reading.remembered import Remembered

pytestmark = pytest.mark.nightly

ASKED: dict[str, Any] = {"user_id": "u1", "tenant_id": "t1", "min_score_ratio": 0}
QUERY = "blue boat from the harbour"


def of_endpoint(server: RerankServer, **changed: Any) -> Settings:
    reranker = {"base_url": server.url, "model": MODEL, "api_key": KEY, "timeout_seconds": 60, **changed}
    return Settings.model_validate({"reranker": reranker})


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Reranking]:
    reranking = Reranking(settings.reranker)
    try:
        yield reranking
    finally:
        await reranking.close()


@pytest_asyncio.fixture(params=FORMS)
async def rerank_server(request: pytest.FixtureRequest) -> AsyncIterator[RerankServer]:
    form: Form = request.param
    async with reranking(form) as server:
        yield server


async def test_servers_of_every_form_put_documents_in_order(rerank_server: RerankServer) -> None:
    settings = of_endpoint(rerank_server)
    async with opened(settings) as reranker:
        assert await reranker.ask(QUERY, ["A car.", "The boat from the harbour.", "A boat."]) == [1, 2, 0]
    assert len(rerank_server.requests) == 1
    assert (await check_reranker(settings)).startswith("127.0.0.1:")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[RerankServer]:
    async with reranking() as started:
        yield started


@pytest_asyncio.fixture
async def world() -> Remembered:
    """Three conversations. The second one shares most words with QUERY, if one includes those that BM25 ignores."""
    world = Remembered()
    for n, text in enumerate(("Blue boat, harbour.", "From the boat of the harbour.", "A boat is here.")):
        await world.summarise(await world.say(text, "Aye.", conversation_id=f"c{n}"))
    return world


async def test_recall_follows_the_reranker_which_sees_no_ids(world: Remembered, server: RerankServer) -> None:
    before = await world.memory.recall(QUERY, **ASKED)
    async with opened(of_endpoint(server)) as reranker:
        hits = await recalled(world, reranker)
    assert [hit.conversation_id for hit in before] == ["c0", "c1", "c2"]
    assert [hit.conversation_id for hit in hits] == ["c1", "c0", "c2"]
    assert all(hit.matches for hit in hits)
    (request,) = server.requests
    assert request.keys() == {"model", "query", "documents", "top_n"}
    assert not any(hit.conversation_id in str(request) or hit.message_ids[0] in str(request) for hit in hits)


async def recalled(world: Remembered, reranking: Reranking) -> list[Any]:
    memory = Memory(world.episodes, world.messages, world.index.search, reranking=reranking)
    return await memory.recall(QUERY, **ASKED)


async def trickles(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while request.transport is not None and not request.transport.is_closing():
        await response.write(b" ")
        await asyncio.sleep(0.02)
    return response


HOSTILE: dict[str, tuple[Answer, str]] = {
    "10 MB": (says(b'{"results": [' + b" " * 10_000_000), "provider_unavailable"),
    "a negative place": (says(scores((-1, 1), (1, 1))), "answer_invalid"),
    "a page": (says(b"<html>"), "provider_unavailable"),
    "429": (says(b"{}", 429, retry_after="3"), "provider_rate_limited"),
    "400": (says(b'{"message": "blue boat"}', 400), "provider_misconfigured"),
    "trickling": (trickles, "provider_unavailable"),
}


@pytest.mark.parametrize(("answer", "outcome"), HOSTILE.values(), ids=HOSTILE)
async def test_recall_survives_any_answer_of_the_reranker(
    world: Remembered, server: RerankServer, answer: Answer, outcome: str
) -> None:
    before = await world.memory.recall(QUERY, **ASKED)
    server.answer = answer
    seconds = 1 if answer is trickles else 60
    began = time.monotonic()
    tracemalloc.start()
    try:
        with capture_logs() as logs:
            async with opened(of_endpoint(server, timeout_seconds=seconds)) as reranker:
                hits = await recalled(world, reranker)
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


async def test_absent_reranker_stops_nothing(world: Remembered, closed_port: int) -> None:
    before = await world.memory.recall(QUERY, **ASKED)
    given = {"reranker": {"base_url": f"http://127.0.0.1:{closed_port}"}}
    settings = Settings.model_validate(given)
    async with opened(settings) as reranker:
        assert await recalled(world, reranker) == before
    with pytest.raises(ProviderError, match="ConnectError"):
        await check_reranker(settings)


async def test_check_reports_reranker_problems(server: RerankServer) -> None:
    with pytest.raises(ProviderMisconfigured, match="does not accept the API key"):
        await check_reranker(of_endpoint(server, api_key="another"))
    assert await check_reranker(Settings()) == "none"
    with pytest.raises(ConfigurationError, match="AFTERWORD_RERANKER__BASE_URL"):
        Memory.from_settings(Settings.model_validate({"reranker": {"base_url": "rerank.internal"}}))
