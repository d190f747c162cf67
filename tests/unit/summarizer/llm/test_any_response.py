"""Arbitrary responses: the client returns an answer or raises a ProviderError."""

import math
from contextlib import suppress
from functools import cache
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from afterword.schemas import Usage
from afterword.streams.errors import ConfigurationError, ProviderError, StoreUnavailable
from afterword.streams.http import HttpClient
from afterword.streams.settings import EmbedderSettings, Llm
from afterword.streams.summarizer.embedders import SERVERS, HttpEmbedder
from afterword.streams.summarizer.llm import PROTOCOLS, ChatRequest, token_count

DEEP = orjson.loads("[" * 1000 + "]" * 1000)
"""Nested as deeply as orjson reads; `str` cannot write it."""
DEEP_ERROR = b'{"error": {"message": ' + b"[" * 1000 + b"]" * 1000 + b"}}"
LATE = "Mon, 05 Jan 99999999999 12:00:00 GMT"
QUESTION = ChatRequest([{"role": "user", "content": "Hello"}], 10)


class Canned(HttpClient):
    """A client whose server always sends the same response."""

    response = httpx.Response(200), b""

    async def _send(self, *_: Any) -> tuple[httpx.Response, bytes]:
        return self.response


@cache
def a_client() -> Canned:
    """Return one client for all examples, because reading the CAs takes long."""
    return Canned(Llm(provider="openai", model="m"), "llm", "http://127.0.0.1:1")


def a_server_that_sends(status: int, retry_after: str, body: bytes) -> HttpClient:
    client = a_client()
    client.response = httpx.Response(status, headers=[(b"retry-after", retry_after.encode())]), body
    return client


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from(["model", "unsupported_value", "response_format", "length", "m", "stop", DEEP]),
)
names = st.sampled_from(
    [
        "error",
        "code",
        "type",
        "message",
        "param",
        "choices",
        "content",
        "text",
        "finish_reason",
        "refusal",
        "usage",
        "prompt_tokens",
        "completion_tokens",
        "response",
        "done_reason",
        "eval_count",
        "data",
        "id",
        "embedding",
    ]
)


def objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=3) | st.dictionaries(names, values, max_size=4)


def written(value: object) -> bytes:
    """JSON of a value that may hold DEEP, which orjson reads and does not write."""
    if value is DEEP:
        return b"[" * 900 + b"]" * 900
    if isinstance(value, dict):
        return b"{%s}" % b",".join(orjson.dumps(name) + b":" + written(held) for name, held in value.items())
    return b"[%s]" % b",".join(map(written, value)) if isinstance(value, list) else orjson.dumps(value)


nested = st.recursive(leaves, objects, max_leaves=8)
completions = st.fixed_dictionaries(
    {
        "choices": st.lists(st.dictionaries(names, nested) | st.fixed_dictionaries({"message": nested}), max_size=2),
        "message": nested,
        "usage": nested,
        "data": nested,
    }
)
errors = st.fixed_dictionaries({"error": st.dictionaries(names, leaves)})
vectors = st.fixed_dictionaries({"data": st.lists(st.fixed_dictionaries({"embedding": nested}), max_size=2)})
bodies = st.binary(max_size=50) | (nested | completions | errors | vectors).map(written)
retries = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.from_regex(
    r"(Mon, )?\d{1,3} (Jan|Xxx) \d{1,12} \d{1,3}:\d\d(:\d{1,12})?( [+-]\d{1,8}| GMT)?", fullmatch=True
)
statuses = st.sampled_from([200, 201, 301, 400, 401, 404, 408, 422, 425, 429, 500, 529, 599])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(statuses, retries, bodies)
@example(400, "", DEEP_ERROR)
@example(400, "", DEEP_ERROR.replace(b"message", b"param"))
@example(429, LATE, b"")
@example(503, LATE, b"")
@example(200, "", b'{"error": {"code": ' + b"[" * 1000 + b"]" * 1000 + b"}}")
@example(200, "", b'{"error": {"code": "' + b"4" * 5000 + b'"}}')
async def test_any_response_is_an_answer_or_provider_error(
    protocol: str, status: int, retry_after: str, body: bytes
) -> None:
    http = a_server_that_sends(status, retry_after, body)
    chat = PROTOCOLS[protocol](Llm(provider="openai", model="m"), http)
    with suppress(ProviderError):
        assert isinstance((await chat.chat(QUESTION)).text, str)


@given(statuses, bodies)
@example(200, b'{"data": [{"embedding": [1e39]}]}')
@example(200, b'{"data": [{"embedding": "12"}]}')
@example(200, b'{"data": [{"embedding": ["nan"]}]}')
@example(200, b'{"data": [{"embedding": [true]}]}')
async def test_any_response_is_a_finite_vector_or_error(status: int, body: bytes) -> None:
    http = a_server_that_sends(status, "9999", body)  # seconds: longer than a call waits
    settings = EmbedderSettings(provider="openai", model="m")
    embedder = HttpEmbedder(http, settings, "/embeddings", SERVERS["openai"][2], str)
    with suppress(StoreUnavailable, ConfigurationError):
        (vector,) = await embedder.passages(["A flight."])
        assert vector
        assert all(type(number) is float and math.isfinite(number) for number in vector)


@given(nested)
@example(True)
@example(2**64 - 1)
def test_token_count_fits_a_database(value: object) -> None:
    count = token_count(value)
    assert type(count) is int
    assert 0 <= count <= 10**9
    assert Usage(prompt_tokens=count, completion_tokens=count)
