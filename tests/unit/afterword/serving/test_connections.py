"""Connections of clients that do not finish: each is closed in its time."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from afterword.serving import server
from afterword.streams.settings import Settings

SECONDS = 0.3
"""Time in which a client has to go on."""
ANSWER = b"ok"


async def answering(_: Any, __: Any, send: Any) -> None:
    """Answer at once, whatever else of the request may follow."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": ANSWER})


@pytest_asyncio.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(server, "HEADER_SECONDS", SECONDS)
    config = server.configuration(Settings(), answering)
    config.load()
    running = server.HttpServer(config)
    loop = asyncio.get_running_loop()
    made = await loop.create_server(
        lambda: server.BoundedHttp(config, running.server_state, app_state={}), "127.0.0.1", 0
    )
    yield made.sockets[0].getsockname()[1]
    made.close()
    await made.wait_closed()


@pytest.mark.parametrize(
    ("request_begins", "goes_on"),
    [
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n", b"x"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", b"f"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"G"),
    ],
)
async def test_what_does_not_end_after_its_answer_is_closed(port: int, request_begins: bytes, goes_on: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_begins)
    assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")
    writer.write(goes_on)
    async with asyncio.timeout(20 * SECONDS):
        assert await reader.read() == b""
    writer.close()


async def test_a_body_that_ends_after_its_answer_makes_room_for_the_next_request(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")
        writer.write(b"xy")
    writer.close()
