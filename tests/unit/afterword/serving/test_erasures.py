"""Routes of erasures: who may ask, what is shown, and what goes on after a server is gone."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from inspect import signature
from typing import Any

import httpx
import pytest

from afterword.context import ANYONE
from afterword.erasing.eraser import Eraser, NotErased
from afterword.erasing.receipt import Receipt
from afterword.erasing.requests import ErasureRunner, stored_time
from afterword.streams.errors import BrokerUnavailable
from tests.doubles.eraser import ErasedCall, ScriptedEraser
from tests.doubles.stores import MemoryErasureRequests
from tests.unit.afterword.serving.served import Served, serving
from tests.unit.afterword.serving.test_reading import Holder

PATH = "/v1/erasures"
ERASE = frozenset({"erase"})
ANN = {"user_id": "ann", "tenant_id": "t1"}


def requests_of(served: Served) -> MemoryErasureRequests:
    found = served.erasures._requests
    assert isinstance(found, MemoryErasureRequests)
    return found


@asynccontextmanager
async def running(runner: ErasureRunner) -> AsyncIterator[None]:
    task = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def asked(served: Served, **body: Any) -> dict[str, Any]:
    answer = await served.client.post(PATH, json=body)
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"{PATH}/{answer.json()['erasure_id']}"
    return dict(answer.json())


async def shown(served: Served, erasure: dict[str, Any]) -> dict[str, Any]:
    answer = await served.client.get(f"{PATH}/{erasure['erasure_id']}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def until(served: Served, erasure: dict[str, Any], **wanted: Any) -> dict[str, Any]:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = await shown(served, erasure)
        if wanted.items() <= found.items():
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(found)


async def comes_true(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_an_erasure_is_stored_then_carried_out_and_ends_with_its_receipt() -> None:
    async with serving() as served:
        served.eraser.go.clear()
        first = await asked(served, **ANN, asked_by="the officer")
        assert (first["state"], first["progress"], first["receipt"]) == ("waiting", None, None)
        assert served.eraser.calls == []
        async with running(served.erasures):
            await until(served, first, state="running")
            assert (await asked(served, **ANN))["erasure_id"] == first["erasure_id"]
            served.eraser.go.set()
            done = await until(served, first, state="done")
        receipt = Receipt.model_validate(done["receipt"])
        assert (receipt.receipt_id, receipt.asked_by) == (first["erasure_id"], "the officer")
        receipt.check("ann", "t1")
        assert served.eraser.calls == [ErasedCall("ann", "t1", None)]
        assert served.eraser.erasures.erasures == {}
        assert "ann" not in repr(requests_of(served).requests)
        again = await asked(served, **ANN)
        assert again["erasure_id"] != first["erasure_id"]


async def test_what_is_waited_for_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afterword.erasing.requests.RENEW_SECONDS", 0.01)
    async with serving() as served, running(served.erasures):
        served.eraser.go.clear()
        erasure = await asked(served, **ANN)
        step = {"stage": "records that the archiver has not taken", "left": 7}
        assert (await until(served, erasure, progress=step))["state"] == "running"


async def test_a_failed_attempt_is_shown_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        served.eraser.errors = [
            NotErased(seconds=300.0, left=2, what="records"),
            BrokerUnavailable(servers="kafka.internal:9092", problem="NodeNotReadyError"),
            RuntimeError("kafka.internal"),
        ]
        problems = []
        async with running(served.erasures):
            erasure = await asked(served, **ANN)
            while len(problems) < 3:
                found = await until(served, erasure, state="waiting")
                if found["problem"]:
                    problems.append(found["problem"])
                    requests = requests_of(served).requests
                    requests[erasure["erasure_id"]] = replace(
                        requests[erasure["erasure_id"]], held_until=stored_time(), problem=None
                    )
                served.erasures._asked.set()
                await asyncio.sleep(0)
            done = await until(served, erasure, state="done")
        assert [problem["error_type"] for problem in problems] == ["not_erased", "broker_unavailable", "runtime_error"]
        assert "not erased yet after 300 s: 2 records" in problems[0]["detail"]
        assert "internal" not in repr(problems)
        assert done["problem"] is None
        assert len(served.eraser.calls) == 4


async def test_another_server_goes_on_when_the_one_that_held_it_is_gone() -> None:
    async with serving() as served:
        erasure = await asked(served, **ANN)
        requests = requests_of(served)
        assert await requests.take("a server that was killed", stored_time(), stored_time(60))
        assert (await shown(served, erasure))["state"] == "running"
        known = requests.requests[erasure["erasure_id"]]
        requests.requests[known.request_id] = replace(known, held_until=stored_time() - timedelta(seconds=1))
        assert (await shown(served, erasure))["state"] == "waiting"
        other = ErasureRunner(requests, served.eraser.erasures, served.eraser.prepare, served.eraser.opened)
        async with running(other):
            done = await until(served, erasure, state="done")
        assert done["receipt"]["receipt_id"] == erasure["erasure_id"]


async def test_a_server_that_ends_lets_go_at_once() -> None:
    async with serving() as served:
        served.eraser.go.clear()
        async with running(served.erasures):
            erasure = await asked(served, **ANN)
            await until(served, erasure, state="running")
        stopped = await shown(served, erasure)
        assert (stopped["state"], stopped["problem"]) == ("waiting", None)
        assert await requests_of(served).take("another", stored_time(), stored_time(60))


async def test_one_that_was_killed_with_the_receipt_kept_is_forgotten_by_the_next() -> None:
    async with serving() as served:
        served.eraser.dies_before_it_ends = True
        async with running(served.erasures):
            erasure = await asked(served, **ANN)
            done = await until(served, erasure, state="done")
        assert len(served.eraser.erasures.erasures) == 1
        again = await asked(served, **ANN)  # what was written since is not in the receipt that is kept
        assert again["erasure_id"] != erasure["erasure_id"]
        assert await shown(served, erasure) == done
        assert requests_of(served).requests[erasure["erasure_id"]].user_id is None


async def test_a_request_that_is_done_and_not_forgotten_is_only_forgotten() -> None:
    async with serving() as served:
        served.eraser.dies_before_it_ends = True
        async with running(served.erasures):
            erasure = await asked(served, **ANN)
            await until(served, erasure, state="done")
            requests = requests_of(served).requests
            await comes_true(lambda: requests[erasure["erasure_id"]].holder is None)
            requests[erasure["erasure_id"]] = replace(requests[erasure["erasure_id"]], held_until=stored_time())
            served.erasures._asked.set()
            await comes_true(lambda: requests[erasure["erasure_id"]].user_id is None)
        assert len(served.eraser.calls) == 1
        assert served.eraser.erasures.erasures == {}


async def test_the_person_is_that_of_the_key() -> None:
    async with serving(Holder(tenant_id="t1", user_id="ann", scopes=ERASE)) as served, running(served.erasures):
        await until(served, await asked(served), state="done")
        await until(served, await asked(served, conversation_id="c1", user_id="ann"), state="done")
        assert served.eraser.calls == [ErasedCall("ann", "t1", None), ErasedCall("ann", "t1", "c1")]
        for other in ({"user_id": "bob"}, {"tenant_id": "t2"}):
            assert (await served.client.post(PATH, json=other)).status_code == 403
        assert len(served.eraser.calls) == 2


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"tenant_id": "t1", "user_id": "ann"}, 200),
        ({"tenant_id": "t1"}, 200),
        ({"tenant_id": ANYONE}, 200),
        ({"tenant_id": "t1", "user_id": "bob"}, 404),
        ({"tenant_id": "t2", "user_id": "ann"}, 404),
        ({"tenant_id": "t2"}, 404),
        ({"tenant_id": None}, 404),
    ],
)
async def test_an_erasure_is_shown_to_its_user_and_tenant_only(
    fields: dict[str, Any], status: int, is_done: bool
) -> None:
    holder = Holder(tenant_id="t1", user_id="ann", scopes=ERASE)
    async with serving(holder) as served:
        erasure = await asked(served)
        if is_done:
            async with running(served.erasures):
                await until(served, erasure, state="done")
        holder.become(**fields, scopes=ERASE)
        answer = await served.client.get(f"{PATH}/{erasure['erasure_id']}")
        assert answer.status_code == status
        assert (await served.client.get(f"{PATH}/{'0' * 36}")).status_code == 404


@pytest.mark.parametrize("scopes", [{"read", "write"}, set()])
async def test_the_key_needs_the_scope(scopes: set[str]) -> None:
    async with serving(Holder(tenant_id="t1", scopes=frozenset(scopes))) as served:
        answers: list[httpx.Response] = [
            await served.client.post(PATH, json={"user_id": "ann"}),
            await served.client.get(f"{PATH}/1"),
        ]
        assert [answer.status_code for answer in answers] == [403, 403]
        assert requests_of(served).requests == {}
    async with serving(Holder(tenant_id="t1", scopes=ERASE)) as served:
        assert (await served.client.get("/v1/conversations", params={"user_id": "ann"})).status_code == 403
        assert (await served.client.delete("/v1/conversations/c1")).status_code == 403


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "user_id"),
        ({"user_id": ""}, "user_id"),
        ({"user_id": {"$ne": None}}, "body.user_id"),
        ({"user_id": "ann", "tenant_id": ["t1"]}, "body.tenant_id"),
        ({"user_id": "ann", "conversation_id": {"$gt": ""}}, "body.conversation_id"),
        ({"user_id": "ann", "conversation_id": ""}, "body.conversation_id"),
        ({"user_id": "ann", "everybody": True}, "body.everybody"),
        ({"user_id": "u" * 257}, "body.user_id"),
        ({"user_id": "ann", "asked_by": 5}, "body.asked_by"),
    ],
)
async def test_nobody_is_erased_by_a_wrong_request(body: dict[str, Any], field: str) -> None:
    async with serving() as served:
        answer = await served.client.post(PATH, json=body)
        assert (answer.status_code, answer.json()["problems"][0]["field"]) == (422, field)
        assert requests_of(served).requests == {}


def test_the_double_erases_as_the_eraser_does() -> None:
    assert signature(ScriptedEraser.erase).parameters.keys() == signature(Eraser.erase).parameters.keys()
