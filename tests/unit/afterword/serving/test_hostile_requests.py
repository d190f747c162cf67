"""Requests that are meant to break something: the server reads, keeps and reveals no more than it must."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial

import httpx
import orjson
import pytest
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from afterword.serving.page.visitor import COOKIE, Seal
from afterword.serving.problems import DETAILS, STATUSES
from afterword.serving.requests import (
    BODY_SECONDS,
    MOST_BYTES,
    MOST_DEPTH,
    MOST_VALUES,
    SMALL_BYTES,
    KeyHolders,
    json_problem,
    large_turn,
    new_key,
    parsed_body,
)
from afterword.serving.server import make_app, routes_only
from afterword.serving.writing import MessagesBody
from distributions.engine.tests.simulation.virtual_time import run_in_virtual_time
from tests.doubles.stores import MemoryKeys
from tests.unit.afterword.serving.served import Served, serving

JSON = {"content-type": "application/json"}
CHUNK = b"x" * 100_000
MESSAGE = {"id": "m1", "conversation_id": "c1", "user_id": "u1", "role": "user", "content": "Hello"}


class Upload:
    """A body of 10 MB in chunks, which counts those that were asked for."""

    def __init__(self) -> None:
        self.read = 0

    async def chunks(self) -> AsyncIterator[bytes]:
        for _ in range(100):
            self.read += 1
            yield CHUNK


def secured() -> Iterator[tuple[str, str]]:
    """Return the method and path of each route that needs a key."""
    for path, methods in routes_only().openapi()["paths"].items():
        for method, operation in methods.items():
            if operation.get("security"):
                yield method.upper(), path.replace("{", "").replace("}", "")


def test_only_operational_routes_need_no_key() -> None:
    paths = routes_only().openapi()["paths"]
    is_open = {path for path, methods in paths.items() for found in methods.values() if not found.get("security")}
    assert is_open == {"/livez", "/readyz", "/metrics"}


@pytest.mark.parametrize(("method", "path"), sorted(secured()))
async def test_no_route_reads_a_body_without_a_key(method: str, path: str) -> None:
    upload = Upload()
    async with serving(KeyHolders(MemoryKeys()), auth="keys") as served:
        content = upload.chunks() if method in ("POST", "PATCH") else None
        answer = await served.client.request(method, path, content=content, headers=JSON)
        assert (answer.status_code, answer.json()["error_type"]) == (401, "unauthenticated")
        assert upload.read <= 1
        assert served.broker.records == []


@pytest.mark.parametrize(("method", "path"), sorted(secured()))
async def test_api_key_without_scopes_opens_nothing(method: str, path: str) -> None:
    keys = MemoryKeys()
    key, record = new_key((), "t1", None)
    await keys.put(record)
    async with serving(KeyHolders(keys), auth="keys") as served:
        answer = await served.client.request(method, path, headers={"Authorization": f"Bearer {key}"})
        assert (answer.status_code, answer.json()["error_type"]) == (403, "not_permitted")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/recall", "/v1/erasures", "/v1/conversations/c1/flush"])
async def test_body_without_length_is_read_up_to_the_limit(served: Served, path: str) -> None:
    upload = Upload()
    answer = await served.client.post(path, content=upload.chunks(), headers=JSON)
    assert answer.status_code == 413
    assert upload.read <= MOST_BYTES // len(CHUNK) + 2


def test_body_that_does_not_arrive_times_out() -> None:
    async def receive() -> dict[str, object]:
        await asyncio.Event().wait()
        return {}

    async def refused() -> tuple[int, float]:
        async with serving() as served:
            app = make_app(served.services)
            request = Request({"type": "http", "method": "POST", "headers": [], "app": app}, receive)
            with pytest.raises(HTTPException) as raised:
                await parsed_body(request, MOST_BYTES, bytes)
            return raised.value.status_code, asyncio.get_running_loop().time()

    assert run_in_virtual_time(refused()) == (408, BODY_SECONDS)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 1_000_000,
        b'{"messages":' + b'[{"metadata":' * 100_000,
        b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
        b'{"user_id": ' + b"9" * 1_000_000 + b"}",
        b'{"user_id": 1e999999}',
        b'{"user_id": "\xff"}',
        b'{"user_id": NaN}',
        b'{"user_id": "u1", "user_id": {"$ne": null}}',
        b"\x00" * 1000,
        b"",
    ],
    ids=range(10),
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/recall", "/v1/erasures"])
async def test_invalid_or_deeply_nested_json_is_refused(served: Served, path: str, content: bytes) -> None:
    answer = await served.client.post(path, content=content, headers=JSON)
    large = len(content) > SMALL_BYTES and path != "/v1/messages"
    refusal = (413, "content_too_large") if large else (422, "request_invalid")
    assert (answer.status_code, answer.json()["error_type"]) == refusal
    assert len(answer.content) < 10_000


@pytest.mark.parametrize(
    ("content", "are_too_many"),
    [
        (b'{"a":1' + b',"a":1' * (MOST_VALUES - 1) + b"}", False),
        (b'{"a":1' + b',"a":1' * MOST_VALUES + b"}", True),
        (b'{"a":"' + b"a, b" * MOST_VALUES + b'"}', False),
        (b'{"a":"' + b'\\",' * MOST_VALUES + b'"}', False),
        (b'{"a":"\\\\"' + b',"a":1' * MOST_VALUES + b"}", True),
        (b'"' + b'\\"' * 3_000_000, False),  # a string that never ends is looked through once
        (b'"' + b"\\" * 6_000_001, False),
        (b"[" + b"{}," * (MOST_VALUES // 2 - 1) + b"{}]", False),
        (b"[" + b"{}," * (MOST_VALUES // 2) + b"{}]", True),
        (b'{"a":' * 1_000_000, True),  # objects within objects need no commas
        (b'{"a":' * MOST_DEPTH + b"1" + b"}" * MOST_DEPTH, False),
        (b'{"a":' * MOST_DEPTH + b"[1]" + b"}" * MOST_DEPTH, True),
        (b"[" + b'[{"a":[]}],' * 20_000 + b"1]", False),
        (b'{"a":"' + b"[{" * 1_000_000 + b'"}', False),
        (b"]" * 7_000_000, True),
        (b'"",' * 2_000_000, True),
    ],
    ids=range(16),
)
def test_json_shape_is_judged_in_linear_time(content: bytes, are_too_many: bool) -> None:
    began = time.process_time()
    assert (json_problem(content) is not None) == are_too_many
    assert time.process_time() - began < 10


NEST = b'{"a":' * 30 + b"1" + b"}" * 30


@pytest.mark.parametrize(
    "content",
    [
        b'{"messages":[{"a":1' + b',"a":1' * 1_100_000 + b"}]}",
        b'{"messages":[{"metadata":{"a":[' + b",".join([NEST] * 40_000) + b"]}}]}",
    ],
    ids=["unknown fields", "objects within objects"],
)
async def test_bodies_of_many_values_delay_nobody(served: Served, content: bytes) -> None:
    assert 6_000_000 < len(content) < 8_000_000
    post = partial(served.client.post, "/v1/messages", content=content, headers=JSON)
    hostile = [asyncio.create_task(post()) for _ in range(20)]
    longest = 0.0
    while not all(task.done() for task in hostile):
        began = time.thread_time()
        await asyncio.sleep(0.001)
        assert (await served.client.get("/livez")).status_code == 200
        longest = max(longest, time.thread_time() - began)
    assert longest < 5  # one after the other in the event loop, they take 20 s
    assert {task.result().json()["problems"][0]["problem"] for task in hostile} == {"has more than 100,000 values"}


@pytest.mark.parametrize(("size", "status"), [(SMALL_BYTES - 20, 202), (SMALL_BYTES, 422)])
async def test_metadata_is_bounded(served: Served, size: int, status: int) -> None:
    metadata = {"a": "x" * size}
    await served.remembered.say("Hello")
    sent = await served.client.post("/v1/messages", json={"messages": [{**MESSAGE, "metadata": metadata}]})
    edited = await served.client.patch("/v1/conversations/c1/messages/m0", json={"metadata": metadata})
    assert (sent.status_code, edited.status_code) == (status, status)


async def test_large_bodies_of_one_key_are_parsed_in_turn(served: Served) -> None:
    being_read: list[str] = []
    goes_on, parsing, loop = threading.Event(), asyncio.Queue[bytes](), asyncio.get_running_loop()

    def parse(content: bytes) -> None:
        loop.call_soon_threadsafe(parsing.put_nowait, content[:1])
        goes_on.wait(10)

    def request(key_id: str) -> Request:
        async def receive() -> dict[str, object]:
            being_read.append(key_id)
            return {"type": "http.request", "body": key_id.encode() * (SMALL_BYTES + 1)}

        scope = {"type": "http", "headers": [], "app": served.app, "state": {"key_id": key_id}}
        return Request(scope, receive)

    async def in_turn(request: Request) -> None:
        async with large_turn(request, MOST_BYTES):
            await parsed_body(request, MOST_BYTES, parse)

    async with asyncio.TaskGroup() as group:
        for key_id in ("a", "a", "a", "b"):
            group.create_task(in_turn(request(key_id)))
        assert {await parsing.get(), await parsing.get()} == {b"a", b"b"}
        assert parsing.empty()
        assert sorted(being_read) == ["a", "b"]
        goes_on.set()
    assert [parsing.get_nowait() for _ in range(parsing.qsize())] == [b"a", b"a"]


@pytest.mark.parametrize("path", ["/mcp", "/search", "/v1/recall"])
async def test_reader_cannot_send_large_bodies(path: str) -> None:
    keys = MemoryKeys()
    key, record = new_key(("read",), "t1", "u1")
    await keys.put(record)
    async with serving(KeyHolders(keys), auth="keys") as served:
        origin = {"origin": "http://127.0.0.1", "content-type": "application/x-www-form-urlencoded"}
        seal: Seal = served.app.state.seal
        served.client.cookies.set(COOKIE, seal.begun(key))
        headers = {"Authorization": f"Bearer {key}", **(origin if path == "/search" else JSON)}
        answer = await served.client.post(path, content=b" " * (SMALL_BYTES + 1), headers=headers)
        assert answer.status_code == 413


async def test_large_batch_of_texts_is_accepted(served: Served) -> None:
    messages = [{**MESSAGE, "id": f"m{n}", "content": "one, two, " * 700} for n in range(1000)]
    answer = await served.client.post("/v1/messages", json={"messages": messages})
    assert answer.status_code == 202


FAULTY = b'{"messages": [' + b",".join([b"{}"] * 200_000) + b"]}"
FAULTY_TEXTS = orjson.dumps({"messages": [{**MESSAGE, "flows": [1] * 200_000, "tools": [1] * 200_000}]})


@pytest.mark.parametrize("content", [FAULTY, FAULTY_TEXTS], ids=["messages", "texts of a message"])
def test_only_the_first_of_many_equal_faults_is_reported(content: bytes) -> None:
    with pytest.raises(ValidationError) as raised:
        MessagesBody.model_validate_json(content)
    assert raised.value.error_count() < 10


async def test_faults_beyond_the_limit_are_counted(served: Served) -> None:
    content = orjson.dumps({"query": "lamp", **{f"name {n}": 1 for n in range(2000)}})
    answer = await served.client.post("/v1/recall", content=content, headers=JSON)
    assert answer.json()["problems"] == [{"field": "body", "problem": "has 2,000 faults, too many to name"}]


TRICKS = [
    "/v1/conversations/..%2f..%2fmetrics",
    "/v1/conversations/%2e%2e/%2e%2e/metrics",
    "/v1/conversations/c1%00/context",
    "/v1/conversations/c1;/context",
    "/v1/conversations/%c0%ae%c0%ae/context",
    "/v1/conversations//context",
    "/v1/erasures/..%2f..%2fetc%2fpasswd",
    "/v1/erasures/%7b%22$ne%22:null%7d",
    "/static/..%2f..%2fpyproject.toml",
    "/static/../rendering.py",
    "/V1/conversations",
    "/v1/conversations/",
]


@pytest.mark.parametrize("path", TRICKS)
async def test_path_traversal_finds_nothing(served: Served, path: str) -> None:
    answer: httpx.Response = await served.client.get(path)
    assert answer.status_code in (404, 422)
    assert answer.headers["content-type"] == "application/problem+json"


async def test_lone_surrogate_in_a_body_is_replaced(served: Served) -> None:
    content = b'\xef\xbb\xbf{"query": "party \\ud83c", "user_id": "u1"}'
    answer = await served.client.post("/v1/recall", content=content, headers=JSON)
    assert answer.status_code == 200


@pytest.mark.parametrize("user_id", [".", ".."])
async def test_percent_encoded_dots_reach_the_route(served: Served, user_id: str) -> None:
    answer = await served.client.get(f"/v1/users/{user_id.replace('.', '%2E')}/profile")
    assert (answer.status_code, answer.json()["user_id"]) == (200, user_id)


@pytest.mark.parametrize("path", ["/v1/conversations/c1", "/openapi.json", "/search", "/nowhere"])
async def test_other_sites_can_neither_load_nor_frame_answers(served: Served, path: str) -> None:
    headers = (await served.client.get(path)).headers
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_every_error_with_a_status_exists() -> None:
    names, waiting = set[str](), [Exception]
    for kind in waiting:  # it grows meanwhile
        names.add(kind.__name__)
        waiting += kind.__subclasses__()
    assert STATUSES.keys() | DETAILS.keys() <= names
