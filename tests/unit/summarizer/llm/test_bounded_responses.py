"""No more of a response is read than an answer can need."""

import gzip
import tracemalloc
from collections.abc import AsyncIterator

import httpx
import pytest

from afterword.streams.errors import ProviderUnavailable
from afterword.streams.http import MOST_RESPONSE_BYTES, bounded_body

BOMB = gzip.compress(bytes(200 * 2**20))


class Wire(httpx.AsyncByteStream):
    """A body that comes in chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            yield chunk


def a_response(*chunks: bytes, status: int = 200, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, headers=named, stream=Wire(*chunks))


async def test_a_body_is_decoded() -> None:
    wire = gzip.compress(b'{"a": 1}')
    assert await bounded_body(a_response(wire[:5], wire[5:], content_encoding="gzip")) == b'{"a": 1}'


async def test_a_bomb_is_not_decoded_further_than_the_limit() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProviderUnavailable, match="longer"):
            await bounded_body(a_response(BOMB, content_encoding="gzip"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * MOST_RESPONSE_BYTES


async def test_what_is_no_gzip_is_no_answer() -> None:
    with pytest.raises(ProviderUnavailable, match="gzip"):
        await bounded_body(a_response(b"no gzip at all", content_encoding="gzip"))
    assert await bounded_body(a_response(b"no gzip at all", status=503, content_encoding="gzip")) == b""


async def test_a_body_is_not_read_further_than_the_limit() -> None:
    exactly = b"a" * MOST_RESPONSE_BYTES
    assert await bounded_body(a_response(exactly)) == exactly
    with pytest.raises(ProviderUnavailable, match="longer"):
        await bounded_body(a_response(exactly, b"a"))


async def test_an_error_with_a_long_body_is_still_known_by_its_status() -> None:
    assert await bounded_body(a_response(b"a" * MOST_RESPONSE_BYTES, b"a", status=500)) == b""
