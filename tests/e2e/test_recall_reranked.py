"""Recall that ends with a server for reranking, through `Memory` and over HTTP, on real servers and workers."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from afterword import Memory
from afterword.streams.settings import Settings
from tests.doubles.reranker import KEY, MODEL, reranking, says
from tests.e2e.deployment import deployed
from tests.e2e.test_serve import ROLES, serving

pytestmark = pytest.mark.nightly

QUERY = "blue boat from the harbour"
SAID = {"words": "Blue boat, harbour.", "order": "From the boat of the harbour.", "last": "A boat is here."}
"""Texts by conversation. BM25 ignores words such as "from" and "the", so it keeps this order."""
BY_WORDS = [*SAID]
BY_SERVER = ["order", "words", "last"]
OWNER: dict[str, Any] = {"user_id": "u1", "tenant_id": None}


def conversations(answer: httpx.Response) -> list[str]:
    return [hit["conversation_id"] for hit in answer.json()["hits"]]


async def test_recall_is_in_the_order_of_the_server_and_of_passages_without_it(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    async with reranking() as reranker:
        given = {"base_url": reranker.url, "model": MODEL, "api_key": KEY, "timeout_seconds": 20}
        settings = make_settings(reranker=given, redaction={"where": "llm"}, kafka={"partitions": 2})
        async with deployed(settings, tmp_path) as deployment:
            for role in ROLES:
                deployment.start(role)
            async with serving(deployment) as server, server.client() as client:
                await _say(client)
                path, body = "/v1/recall", {"query": QUERY, "user_id": "u1"}
                await server.until(lambda answer: answer.status_code == 200, "/v1/conversations/last/context")
                while len(conversations(answer := await client.post(path, json=body))) < len(SAID):
                    assert answer.status_code == 200
                    await asyncio.sleep(0.1)
                assert conversations(answer) == BY_SERVER
                assert all(hit["matches"] for hit in answer.json()["hits"])
                async with Memory.from_settings(settings) as memory:
                    hits = await memory.recall(QUERY, **OWNER)
                assert [hit.conversation_id for hit in hits] == BY_SERVER
                shown = str(reranker.requests)
                assert "From the boat of the harbour." in shown
                assert "[EMAIL_1]" in shown
                assert "@example.com" not in shown
                assert not {"u1", "words-0"} & set(shown.split("'"))

                reranker.answer = says(b"[" * 1_000_000)
                assert conversations(await client.post(path, json=body)) == BY_WORDS
                reranker.answer = _unavailable
                assert conversations(await client.post(path, json=body)) == BY_WORDS
                text = (await client.get("/metrics")).text
                assert 'afterword_rerankings_total{outcome="answer_invalid"} 1.0' in text
                assert 'afterword_rerankings_total{outcome="provider_unavailable"} 1.0' in text
                log = server.process.log.read_text()
                assert log.count("reranking_failed") == 2
                assert not [word for word in ("harbour", KEY) if word in log]


async def _say(client: httpx.AsyncClient) -> None:
    for name, text in SAID.items():
        contents = text, "Aye. Write to joe@example.com."
        made = [
            {"id": f"{name}-{n}", "conversation_id": name, "user_id": "u1", "role": role, "content": content}
            for n, (role, content) in enumerate(zip(("user", "assistant"), contents, strict=True))
        ]
        assert (await client.post("/v1/messages", json={"messages": made})).status_code == 202
        assert (await client.post(f"/v1/conversations/{name}/flush", json={})).status_code == 202


async def _unavailable(_: web.Request) -> web.StreamResponse:
    return web.Response(status=503)
