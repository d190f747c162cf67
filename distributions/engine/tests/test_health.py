import asyncio
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from faust_eos.health import HealthServer, Readiness


@pytest.fixture
def health() -> Readiness:
    return Readiness("partitions", "llm")


@pytest.fixture
async def client(health: Readiness) -> AsyncIterator[aiohttp.ClientSession]:
    async with (
        HealthServer(health, "127.0.0.1", 0) as server,
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session,
    ):
        yield session


async def readiness(client: aiohttp.ClientSession) -> tuple[int, dict[str, object]]:
    async with client.get("/readyz") as answer:
        return answer.status, await answer.json()


async def test_worker_is_ready_once_every_condition_holds(client, health):
    status, body = await readiness(client)
    assert (status, body) == (
        503,
        {"status": "not_ready", "reasons": {"partitions": "starting", "llm": "starting"}},
    )
    health.ready("partitions")
    assert (await readiness(client))[0] == 503
    health.ready("llm")
    assert await readiness(client) == (200, {"status": "ready"})


async def test_lost_readiness_has_a_reason_and_comes_back(client, health):
    health.ready("partitions")
    health.not_ready("llm", "provider_misconfigured")
    assert await readiness(client) == (503, {"status": "not_ready", "reasons": {"llm": "provider_misconfigured"}})
    health.ready("llm")
    assert (await readiness(client))[0] == 200


async def test_worker_without_conditions_is_ready():
    assert Readiness().reasons == {}


async def test_liveness_does_not_depend_on_readiness(client):
    async with client.get("/livez") as answer:
        assert answer.status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
async def test_health_server_answers_only_get(client, method):
    async with client.request(method, "/readyz") as answer:
        assert answer.status == 405


async def test_unknown_health_path_is_not_found(client):
    async with client.get("/") as answer:
        assert answer.status == 404


@pytest.fixture
async def server(health: Readiness) -> AsyncIterator[HealthServer]:
    async with HealthServer(health, "127.0.0.1", 0) as started:
        yield started


async def test_failing_health_view_is_logged(health: Readiness, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_: web.Request) -> web.Response:
        raise LookupError("what it was")

    async with (
        HealthServer(health, "127.0.0.1", 0, {"/view": broken}) as server,
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as client,
        client.get("/view") as answer,
    ):
        assert answer.status == 500
    assert "what it was" in caplog.text


async def test_health_server_is_unreachable_from_other_addresses(server: HealthServer) -> None:
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.2", server.port)


async def test_port_is_free_again_after_the_stop(health):
    async with HealthServer(health, "127.0.0.1", 0) as server:
        port = server.port
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_port_in_use_is_an_error_leaving_nothing_open(health):
    async with HealthServer(health, "127.0.0.1", 0) as first:
        with pytest.raises(OSError, match="address already in use"):
            await HealthServer(health, "127.0.0.1", first.port).__aenter__()
