import asyncio
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from faust_eos.health import MAX_LINE_BYTES, HealthServer, Readiness

SECONDS = 10


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
    assert Readiness().reasons == {}


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


async def raw(server: HealthServer, *parts: bytes) -> bytes:
    """Send these bytes and return the response, until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(SECONDS):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.fixture
async def server(health: Readiness) -> AsyncIterator[HealthServer]:
    async with HealthServer(health, "127.0.0.1", 0) as started:
        yield started


async def test_a_header_that_does_not_end_is_refused(server: HealthServer, caplog: pytest.LogCaptureFixture) -> None:
    endless = [b"x" * 512] * (2 * MAX_LINE_BYTES // 512)
    assert b" 400 " in await raw(server, b"GET /livez HTTP/1.1\r\nhost: ", *endless)
    assert caplog.records == []  # whoever sends nonsense must not fill the log


async def test_headers_without_end_are_refused(server: HealthServer) -> None:
    lines = [b"x%d: y\r\n" % number for number in range(1000)]
    answer = await raw(server, b"GET /livez HTTP/1.1\r\n", *lines)
    assert answer == b"" or b" 400 " in answer


async def test_what_is_no_http_is_refused(server: HealthServer) -> None:
    assert b" 400 " in await raw(server, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 \r\n\r\n")


async def test_a_request_that_never_ends_is_cut_off(health: Readiness) -> None:
    async with HealthServer(health, "127.0.0.1", 0, connection_seconds=0.2) as server:
        assert await raw(server, b"GET /livez HTTP/1.1\r\nhost: x\r\nx") == b""


async def test_a_view_that_fails_is_logged(health: Readiness, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_: web.Request) -> web.Response:
        raise LookupError("what it was")

    async with HealthServer(health, "127.0.0.1", 0, {"/view": broken}) as server:
        assert b" 500 " in await raw(server, b"GET /view HTTP/1.0\r\n\r\n")
    assert "what it was" in caplog.text


async def test_it_cannot_be_reached_from_another_address(server: HealthServer) -> None:
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.2", server.port)


async def test_the_port_is_free_again_after_the_stop(health):
    async with HealthServer(health, "127.0.0.1", 0) as server:
        port = server.port
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_a_port_in_use_is_an_error_and_leaves_nothing_open(health):
    async with HealthServer(health, "127.0.0.1", 0) as first:
        with pytest.raises(OSError, match="address already in use"):
            await HealthServer(health, "127.0.0.1", first.port).start()
