import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest

from streams.runtime.health import MAX_LINE_BYTES, Health, HealthServer


@pytest.fixture
def health() -> Health:
    return Health("partitions", "llm")


@pytest.fixture
async def client(health: Health) -> AsyncIterator[aiohttp.ClientSession]:
    async with (
        HealthServer(health, "127.0.0.1", 0) as server,
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session,
    ):
        yield session


async def readiness(client: aiohttp.ClientSession) -> tuple[int, dict[str, object]]:
    async with client.get("/readyz") as answer:
        return answer.status, await answer.json()


async def test_a_worker_is_not_ready_until_every_condition_is_met(client, health):
    status, body = await readiness(client)
    assert (status, body) == (
        503,
        {"status": "not_ready", "reasons": {"partitions": "starting", "llm": "starting"}},
    )
    health.ready("partitions")
    assert (await readiness(client))[0] == 503
    health.ready("llm")
    assert await readiness(client) == (200, {"status": "ready"})


async def test_readiness_is_lost_with_its_reason_and_comes_back(client, health):
    health.ready("partitions")
    health.not_ready("llm", "provider_misconfigured")
    assert await readiness(client) == (503, {"status": "not_ready", "reasons": {"llm": "provider_misconfigured"}})
    health.ready("llm")
    assert (await readiness(client))[0] == 200


async def test_a_worker_without_conditions_is_ready():
    assert Health().reasons == {}


async def test_liveness_does_not_depend_on_readiness(client):
    async with client.get("/livez") as answer:
        assert answer.status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
async def test_only_get_is_answered(client, method):
    async with client.request(method, "/readyz") as answer:
        assert answer.status == 405


async def test_other_paths_do_not_exist(client):
    async with client.get("/") as answer:
        assert answer.status == 404


async def test_a_body_is_refused_unread(client):
    async with client.get("/livez", data=b"x" * 10_000) as answer:
        assert answer.status == 413
        assert answer.headers["connection"] == "close"


async def test_an_oversized_request_line_is_refused(client):
    async with client.get("/livez?" + "x" * 2 * MAX_LINE_BYTES) as answer:
        assert answer.status == 400


async def test_the_port_is_free_again_after_the_stop(health):
    async with HealthServer(health, "127.0.0.1", 0) as server:
        port = server.port
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_a_port_in_use_is_an_error_and_leaves_nothing_open(health):
    async with HealthServer(health, "127.0.0.1", 0) as first:
        with pytest.raises(OSError, match="address already in use"):
            await HealthServer(health, "127.0.0.1", first.port).start()
