"""Connections of clients that do not finish are closed in time."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest
import pytest_asyncio

from afterword.serving import server
from afterword.serving.server import OutermostMiddleware, make_app
from afterword.streams.settings import Serve, Settings
from afterword.streams.telemetry.metrics import Metrics
from tests.unit.afterword.serving.served import serving
from tests.unit.afterword.serving.test_page import OneKey

SECONDS = 1.0
"""A client has to continue within this time."""
ANSWER = b"ok"


async def answering(_: Any, __: Any, send: Any) -> None:
    """Answer at once, before the rest of the request arrives."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": ANSWER})


@pytest_asyncio.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(server, "HEADER_SECONDS", SECONDS)
    async with listening(answering) as found:
        yield found


@asynccontextmanager
async def listening(app: Any, settings: Settings | None = None) -> AsyncIterator[int]:
    """An application over uvicorn; yields its port."""
    config = server.configuration(settings or Settings(), app)
    config.load()
    running = server.HttpServer(config, asyncio.Event())
    loop = asyncio.get_running_loop()
    made = await loop.create_server(
        lambda: server.BoundedHttp(config, running.server_state, app_state={}), "127.0.0.1", 0
    )
    yield made.sockets[0].getsockname()[1]
    made.close()
    for connection in list(running.server_state.connections):
        connection.transport.abort()
    await asyncio.sleep(0)  # until they are lost
    await made.wait_closed()


@pytest.mark.parametrize(
    ("request_begins", "goes_on"),
    [
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n", b"x"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", b"f"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"G"),
    ],
)
async def test_unread_answers_connection_is_closed(port: int, request_begins: bytes, goes_on: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_begins)
    assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")
    writer.write(goes_on)
    async with asyncio.timeout(20 * SECONDS):
        assert await reader.read() == b""
    writer.close()


async def test_body_that_ends_after_its_answer_frees_its_slot() -> None:
    async with listening(answering) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")
            writer.write(b"xy")
        writer.close()


async def test_server_runs_without_tcp_user_timeout(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr("socket.TCP_USER_TIMEOUT")
    async with listening(answering) as port, httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"http://127.0.0.1:{port}/")).content == ANSWER
    assert [record for record in caplog.records if record.name == "asyncio"] == [], "errors of callbacks end there"


class Broken:
    """Fails with a user's text in the error."""

    async def conversation(self, *_: Any, **__: Any) -> None:
        raise KeyError("a text of somebody's")


@pytest.mark.parametrize("path", ["/v1/conversations/c1", "/conversation?id=c1"])
async def test_unforeseen_error_is_logged_by_its_type_alone(
    path: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving() as served:
        app = make_app(replace(served.services, memory=Broken()))  # type: ignore[arg-type]  # it is one that fails
        async with listening(app) as port, httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"http://127.0.0.1:{port}{path}")
    assert (answer.status_code, answer.json()["error_type"]) == (500, "internal_server_error")
    logged = caplog.text + "".join(capsys.readouterr())
    assert "KeyError" in logged
    assert "somebody" not in logged + answer.text


async def half_answering(_: Any, __: Any, send: Any) -> None:
    """Fail in the middle of an answer."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise KeyError("a text of somebody's")


async def test_error_during_an_answer_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    app = OutermostMiddleware(half_answering, Metrics("server", "any"))
    async with listening(app) as port, httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(f"http://127.0.0.1:{port}/")
    assert "somebody" not in caplog.text


@asynccontextmanager
async def clients(port: int, number: int) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """Connections that send nothing."""
    found = [await asyncio.open_connection("127.0.0.1", port) for _ in range(number)]
    yield found
    for _, writer in found:
        writer.close()
        with suppress(ConnectionResetError):
            await writer.wait_closed()


async def get(path: str, connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], *headers: str) -> bytes:
    """Return the status of an answer; empty if the connection is closed."""
    reader, writer = connection
    writer.write("\r\n".join([f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]).encode())
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return b""
    await reader.readexactly(int(re.findall(rb"content-length: ([0-9]+)", head)[0]))
    return head.split()[1]


async def test_health_answers_while_too_many_connections_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 20)
    async with serving() as served, listening(served.app) as port, clients(port, 21) as (first, *_):
        assert [await get(path, first) for path in ("/livez", "/readyz", "/metrics")] == [b"200", b"200", b"503"]


async def test_address_has_few_connections_without_valid_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_STRANGERS", 5)
    async with (
        serving(OneKey("k"), auth="keys") as served,
        listening(served.app) as port,
        clients(port, 5) as (first, *_),
    ):
        assert await get("/v1/users", first, "Authorization: Bearer wrong") == b"401"
        async with clients(port, 1) as (one_more,):
            assert await get("/livez", one_more) == b""
        assert await get("/v1/users", first, "Authorization: Bearer k") == b"200"
        async with clients(port, 1) as (one_more,):
            assert await get("/livez", one_more) == b"200", "the first one has sent a key"


async def test_strangers_of_trusted_proxy_count_by_their_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_STRANGERS", 2)
    goes_on, begun = asyncio.Event(), asyncio.Queue[None]()

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/wait":
            begun.put_nowait(None)
            await goes_on.wait()
        await answering(scope, receive, send)

    settings = Settings(serve=Serve(auth="keys", trusted_proxies="127.0.0.1"))
    async with (
        listening(OutermostMiddleware(waiting, Metrics("server", "any")), settings) as port,
        clients(port, 6) as connections,
    ):
        first, second, third, other, *_ = connections
        held = [asyncio.create_task(get("/wait", one, "X-Forwarded-For: 192.0.2.1")) for one in (first, second)]
        await begun.get(), await begun.get()
        refused = await get("/wait", third, "X-Forwarded-For: 192.0.2.1")
        assert (refused, await get("/", other, "X-Forwarded-For: 192.0.2.2")) == (b"429", b"200")
        goes_on.set()
        assert await asyncio.gather(*held) == [b"200", b"200"]
        assert await get("/", third, "X-Forwarded-For: 192.0.2.1") == b"200"
