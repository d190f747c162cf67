"""No more of a response is read, and decoded, than an answer can need."""

import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator

import httpx
import pytest

from afterword.streams.errors import ProviderUnavailable
from afterword.streams.http import MOST_RESPONSE_BYTES, bounded_body

BOMB = gzip.compress(b" " * 200_000_000)


class Wire(httpx.AsyncByteStream):
    """A body that comes in chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            yield chunk


def a_response(*chunks: bytes, encoding: str | None = None) -> httpx.Response:
    return httpx.Response(200, headers={"content-encoding": encoding} if encoding else {}, stream=Wire(*chunks))


@pytest.mark.parametrize("encoding", [None, "identity", "gzip", " GZIP "])
async def test_a_body_is_decoded(encoding: str | None) -> None:
    body = b'{"a": 1}'
    wire = gzip.compress(body) if encoding and "zip" in encoding.lower() else body
    assert await bounded_body(a_response(wire[:5], wire[5:], encoding=encoding)) == body


async def test_a_bomb_is_not_decoded_further_than_the_limit() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProviderUnavailable, match=str(MOST_RESPONSE_BYTES)):
            await bounded_body(a_response(BOMB, encoding="gzip"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * MOST_RESPONSE_BYTES


async def test_a_plain_body_is_not_read_further_than_the_limit() -> None:
    exactly = b"a" * MOST_RESPONSE_BYTES
    assert await bounded_body(a_response(exactly)) == exactly
    with pytest.raises(ProviderUnavailable, match="longer"):
        await bounded_body(a_response(exactly, b"a"))


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("br", b"x"), ("deflate", zlib.compress(b"{}")), ("gzip, gzip", b"x"), ("gzip", b"no gzip at all")],
)
async def test_what_cannot_be_decoded_within_bounds_is_no_answer(encoding: str, body: bytes) -> None:
    with pytest.raises(ProviderUnavailable):
        await bounded_body(a_response(body, encoding=encoding))
