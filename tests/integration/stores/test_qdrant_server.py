"""Particulars of Qdrant on a server: creating the collection, and the errors of a server that refuses."""

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
import pytest_asyncio
from aiohttp import web
from qdrant_client import AsyncQdrantClient

from afterword.streams.errors import ConfigurationError, StoreRefuses, StoreUnavailable
from afterword.streams.settings import EmbedderSettings, Qdrant, Settings
from afterword.streams.stores.index import Query
from afterword.streams.stores.qdrant import HttpConnection, QdrantIndex, check, open_index
from tests.endpoints import serving
from tests.qdrant_server import QdrantServer
from tests.rows import with_rows
from tests.samples import a_summary
from tests.vectors import put

# the client warns that its local mode has no payload indexes, which only a server is asked for
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore:Payload indexes have no effect:UserWarning"),
    pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection:UserWarning"),
]

TEXT = "I need a taxi."
A_QUERY = Query(text="taxi", user_id="u1", tenant_id="t1")
WRITERS = 6


@pytest_asyncio.fixture
async def stand_in_url() -> AsyncIterator[str]:
    async with QdrantServer() as server:
        yield server.url


@pytest.fixture(params=["stand_in_url", "qdrant_url"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest_asyncio.fixture
async def writers(url: str, unique: Callable[[str], str]) -> AsyncIterator[list[QdrantIndex]]:
    """Return the indexes of several processes, on one collection that does not exist yet."""
    settings = Qdrant(url=url, collection=unique("episodes"))
    opened = [open_index(settings, EmbedderSettings(provider="none")) for _ in range(WRITERS)]
    yield opened
    await asyncio.gather(*[index.close() for index in opened])
    async with httpx.AsyncClient() as client:
        await client.delete(f"{url}/collections/{settings.collection}")


async def test_one_of_many_first_writers_creates_the_collection(writers: list[QdrantIndex]) -> None:
    await asyncio.gather(*[put(index, a_summary(number), TEXT) for number, index in enumerate(writers, start=1)])
    names = [f"c1:{number}" for number in range(1, WRITERS + 1)]
    assert await writers[0].revisions(names) == dict.fromkeys(names, 1)


async def test_second_first_writer_with_other_dimensions_fails(writers: list[QdrantIndex]) -> None:
    puts = [put(writers[0], a_summary(1), TEXT, [1.0]), put(writers[1], a_summary(2), TEXT, [1.0, 0.0])]
    failed = [error for error in await asyncio.gather(*puts, return_exceptions=True) if error]
    assert [type(error) for error in failed] == [ConfigurationError]


async def problem(url: str, seconds: float = 60) -> str:
    """Return the error that a query raises."""
    index = open_index(Qdrant(url=url).answering_within(seconds), EmbedderSettings(provider="none"))
    try:
        with pytest.raises(StoreUnavailable) as caught:
            await index.revisions(["c1:1"])
    finally:
        await index.close()
    assert "canary" not in str(caught.value)
    return str(caught.value)


@with_rows
async def test_answering_server_is_not_called_unreachable(status: int, said: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/":
            return web.json_response({"title": "qdrant", "version": "1.17.1"})
        return web.Response(status=status, text="canary", headers={"Retry-After": "1"})

    async with serving(answer, "*", "/{any:.*}") as url:
        with_login = url.replace("://", "://canary:canary@")
        assert await problem(with_login) == f"qdrant at {url} {said}"


async def test_unreachable_server_is_named_with_the_reason(closed_port: int) -> None:
    away = f"http://127.0.0.1:{closed_port}"
    assert await problem(away) == f"qdrant at {away} cannot be reached: it refused the connection"
    assert await problem(f"http://localhost:{closed_port}") == (
        f"qdrant at http://localhost:{closed_port} cannot be reached: it refused the connection"
    )
    assert "the name of its host cannot be resolved" in await problem("http://nobody.invalid:6333")


async def test_hanging_or_foreign_server_is_named_as_such() -> None:
    async def answer(request: web.Request) -> web.Response:
        match request.path.split("/")[1]:
            case "hangs":
                await asyncio.sleep(3)
            case "breaks":
                assert request.transport is not None
                request.transport.abort()
        return web.Response(text="<html>canary</html>")

    async with serving(answer, "GET", "/{any:.*}") as url:
        assert "it did not answer in time" in await problem(f"{url}/hangs", 1)
        assert "it closed the connection" in await problem(f"{url}/breaks")
        assert "what answers is not a Qdrant server" in await problem(url)
        assert "no TLS connection could be made" in await problem(url.replace("http:", "https:"))


@pytest.mark.parametrize("version", ["1.16.3", "1.15.5", "0.11.0", "unknown"])
async def test_server_without_revision_fences_is_refused_before_use(version: str) -> None:
    async with QdrantServer(version) as server:
        settings = Settings(qdrant=Qdrant(url=server.url))
        index = open_index(settings.qdrant, EmbedderSettings(provider="none"))
        for use in (put(index, a_summary(), TEXT), index.search(A_QUERY), index.revisions(["c1:1"])):
            with pytest.raises(ConfigurationError, match=f"is version '{version}'; 1.17 or later is needed"):
                await use
        await index.close()
        with pytest.raises(ConfigurationError, match="AFTERWORD_QDRANT__URL: qdrant at http"):
            await check(settings.qdrant, settings.embedder)


@pytest.mark.parametrize("answer", [429, 503, "too late"])
async def test_repeated_write_is_one_request(answer: int | str) -> None:
    async with QdrantServer() as server:
        client = AsyncQdrantClient(url=server.url, timeout=5, check_compatibility=False)
        index = QdrantIndex(HttpConnection(client), "episodes")
        await put(index, a_summary(), TEXT)
        server.requests.clear()
        with server.answering(answer), pytest.raises(StoreUnavailable):
            await put(index, a_summary(2), TEXT)
        await put(index, a_summary(2), TEXT)
        assert server.requests == ["PUT /collections/episodes/points"] * 2
        await index.close()


async def test_search_is_one_request_and_names_a_missing_collection() -> None:
    async with QdrantServer() as server:
        index = open_index(Qdrant(url=server.url), EmbedderSettings(provider="none"))
        assert await index.search(A_QUERY) == []
        await put(index, a_summary(), TEXT, [1.0, 0.0])
        server.requests.clear()
        assert [one.episode_id for one in await index.search(A_QUERY, [1.0, 0.0])] == ["c1:1"]
        assert await index.revisions(["c1:1"]) == {"c1:1": 1}
        assert server.requests == ["POST /collections/episodes/points/query", "POST /collections/episodes/points"]
        await index.close()


async def test_collection_is_created_for_tenants_and_bounded_deletion() -> None:
    async with QdrantServer() as server:
        index = open_index(Qdrant(url=server.url), EmbedderSettings(provider="none"))
        await put(index, a_summary(), TEXT)
        created = server.bodies["PUT /collections/episodes"]
        assert created["hnsw_config"] == {"m": 0, "payload_m": 16}
        assert created["wal_config"] == {"wal_capacity_mb": 1}
        assert created["optimizers_config"] == {"deleted_threshold": 0.001, "vacuum_min_vector_number": 100}
        await index.close()


async def test_later_writes_push_removed_episodes_out_of_the_log() -> None:
    async with QdrantServer() as server:
        index = open_index(Qdrant(url=server.url), EmbedderSettings(provider="none"))
        await index.push_out_removed()  # there is no collection yet
        await put(index, a_summary(), TEXT)
        await index.remove("c1:1", 1)
        server.requests.clear()
        await index.push_out_removed()
        written = server.bodies["PUT /collections/episodes/points"]
        size = sum(len(point["payload"]["filler"]) for point in written["points"])
        assert size * server.requests.count("PUT /collections/episodes/points") >= 4 << 20
        client = AsyncQdrantClient(url=server.url, check_compatibility=False)
        left, _ = await client.scroll("episodes")
        await client.close()
        assert [point.payload for point in left] == [{"episode_id": "c1:1", "revision": 1, "deleted": True}]
        await index.close()


async def test_deleted_collection_is_created_again(writers: list[QdrantIndex], url: str) -> None:
    index = writers[0]
    await put(index, a_summary(), TEXT)
    async with httpx.AsyncClient() as client:
        await client.delete(f"{url}/collections/{index.collection}")
    with pytest.raises(StoreRefuses, match="404"):
        await put(index, a_summary(), TEXT)
    await put(index, a_summary(), TEXT)
    assert await index.revisions(["c1:1"]) == {"c1:1": 1}
