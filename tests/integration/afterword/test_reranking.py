"""Rerankers over HTTP: servers of every form. Any answer and any response is tried in the unit tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from afterword import Memory
from afterword.operating.checks import check_reranker
from afterword.reading.reranking import Reranking
from afterword.streams.errors import ConfigurationError, ProviderMisconfigured
from afterword.streams.settings import Settings
from tests.doubles.reranker import FORMS, KEY, MODEL, Form, RerankServer, reranking

pytestmark = pytest.mark.nightly

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


async def test_check_reports_reranker_problems(server: RerankServer) -> None:
    with pytest.raises(ProviderMisconfigured, match="does not accept the API key"):
        await check_reranker(of_endpoint(server, api_key="another"))
    assert await check_reranker(Settings()) == "none"
    with pytest.raises(ConfigurationError, match="AFTERWORD_RERANKER__BASE_URL"):
        Memory.from_settings(Settings.model_validate({"reranker": {"base_url": "rerank.internal"}}))
