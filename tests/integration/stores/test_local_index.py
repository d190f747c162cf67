"""The owner of Qdrant's local mode shows it to other processes of the machine."""

import stat
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from aiohttp import web

from afterword.streams.errors import StoreUnavailable
from afterword.streams.runtime.health import HealthServer, Readiness
from afterword.streams.stores import local_index
from afterword.streams.stores.index import Dense, Query
from afterword.streams.stores.local_index import (
    MAX_PARAMETER_BYTES,
    PARAMETER,
    ROUTE,
    SEARCH_ROUTE,
    Address,
    IndexReader,
    address_file,
    encoded,
    ids_of_owner,
    search_of_owner,
)
from tests.doubles.index import MemoryIndex
from tests.endpoints import serving
from tests.samples import a_summary

QUERY = Query(text="flights to Rome", user_id="u1", tenant_id="t1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "qdrant"


async def words_alone(text: str) -> Dense | None:
    return None


@pytest_asyncio.fixture
async def owner(path: Path) -> AsyncIterator[Address]:
    index, token = MemoryIndex(), local_index.new_token()
    for n, fields in enumerate([{}, {"user_id": "u2"}, {"tenant_id": None}], start=1):
        await index.put(a_summary(conversation_id=f"c{n}", **fields), "A flight.")
    async with HealthServer(Readiness(), "127.0.0.1", 0, local_index.index_views(index, words_alone, token)) as server:
        local_index.announce(path, "127.0.0.1", server.port, token)
        yield Address.model_validate_json(address_file(path).read_text())


async def test_another_process_sees_the_ids_and_searches(path: Path, owner: Address) -> None:
    assert await ids_of_owner(path) == {"c1:1", "c2:1", "c3:1"}
    (hit,) = await search_of_owner(path, QUERY)
    assert (hit.episode_id, hit.message_ids) == ("c1:1", ("m0", "m1", "m2"))


@pytest.mark.parametrize("text", ["flight " * 5000, "💬" * 5000 + "flight", "%" * 3000])
async def test_of_a_long_query_as_much_is_searched_as_a_request_holds(path: Path, owner: Address, text: str) -> None:
    query = QUERY.model_copy(update={"text": text})
    assert MAX_PARAMETER_BYTES - 100 < len(encoded(query)) <= MAX_PARAMETER_BYTES
    found = await search_of_owner(path, query)
    assert [hit.episode_id for hit in found] == (["c1:1"] if text.startswith("flight") else [])


@pytest.mark.parametrize("route", [ROUTE, SEARCH_ROUTE])
@pytest.mark.parametrize("token", [None, "", "Bearer", "Bearer wrong", "Bearer ü"])
async def test_nobody_is_shown_anything_without_the_token(owner: Address, route: str, token: str | None) -> None:
    headers = {} if token is None else {"Authorization": token.encode()}
    async with httpx.AsyncClient(base_url=owner.url) as client:
        answer = await client.get(route, params={PARAMETER: QUERY.model_dump_json()}, headers=headers)
    assert (answer.status_code, "c1" in answer.text) == (403, False)


@pytest.mark.parametrize("wanted", ["", "flight", '{"text": "flight"}', '{"text": "flight", "user_id": "u1"}', "[]"])
async def test_nothing_is_searched_without_tenant_and_user(owner: Address, wanted: str) -> None:
    headers = {"Authorization": f"Bearer {owner.token}"}
    async with httpx.AsyncClient(base_url=owner.url, headers=headers) as client:
        assert (await client.get(SEARCH_ROUTE, params={PARAMETER: wanted})).status_code == 400
        assert (await client.post(SEARCH_ROUTE)).status_code == 405


async def test_where_the_owner_listens_is_for_the_same_user_alone(path: Path, owner: Address) -> None:
    assert stat.S_IMODE(address_file(path).stat().st_mode) == 0o600
    local_index.announce(path, "127.0.0.1", 1, "another")
    assert stat.S_IMODE(address_file(path).stat().st_mode) == 0o600


async def test_an_owner_that_is_gone_is_unavailable(path: Path, closed_port: int) -> None:
    with pytest.raises(StoreUnavailable, match="its owner does not answer"):
        await search_of_owner(path, QUERY)
    local_index.announce(path, "127.0.0.1", closed_port, "token")
    with pytest.raises(StoreUnavailable, match="its owner does not answer"):
        await search_of_owner(path, QUERY)


@pytest.mark.parametrize("answer", ["<html>It works!</html>", '{"title": "another"}', "[7]", ""])
async def test_what_another_program_answers_at_the_owner_s_old_port_is_no_index(path: Path, answer: str) -> None:
    async def another(request: web.Request) -> web.Response:
        return web.Response(text=answer, content_type="text/html")

    async with serving(another, "GET", "/{any:.*}") as url:
        host, port = url.removeprefix("http://").split(":")
        local_index.announce(path, host, int(port), "token")
        with pytest.raises(StoreUnavailable, match="its owner does not answer"):
            await search_of_owner(path, QUERY)
        with pytest.raises(StoreUnavailable, match="its owner does not answer"):
            await ids_of_owner(path)
        found = await IndexReader(path, MemoryIndex).search(QUERY, words_alone)
    assert found == [], "the directory is not there"
