"""No more of a response is read than an answer can need."""

import gzip
from collections.abc import AsyncIterator

import httpx
import pytest

from afterword.streams.errors import ProviderUnavailable
from afterword.streams.http import MOST_RESPONSE_BYTES, bounded_body


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


async def test_compressed_responses_are_not_decompressed() -> None:
    bomb = gzip.compress(bytes(2**20))
    with pytest.raises(ProviderUnavailable, match=r"compressed \(gzip\)"):
        await bounded_body(a_response(bomb, content_encoding="gzip"))
    assert await bounded_body(a_response(bomb, status=503, content_encoding="gzip")) == b""
    assert await bounded_body(a_response(b"{}", content_encoding="identity")) == b"{}"


async def test_body_is_read_up_to_the_limit() -> None:
    exactly = b"a" * MOST_RESPONSE_BYTES
    assert await bounded_body(a_response(exactly)) == exactly
    with pytest.raises(ProviderUnavailable, match="longer"):
        await bounded_body(a_response(exactly, b"a"))


async def test_long_error_is_known_by_its_status() -> None:
    assert await bounded_body(a_response(b"a" * MOST_RESPONSE_BYTES, b"a", status=500)) == b""
