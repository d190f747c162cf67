"""Routes of erasures: who may ask, what is shown, and what continues after a server has ended."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from afterword.operating.eraser import AT_A_TIME, MOST_OPEN, OF_A_TENANT, ErasureRunner, NotErased
from afterword.operating.person import Person, Receipt
from afterword.schemas.base import ANYONE
from afterword.streams.errors import BrokerUnavailable
from tests.rows import with_rows
from tests.unit.afterword.serving.served import Served, serving
from tests.unit.afterword.serving.test_reading import Holder

PATH = "/v1/erasures"
ERASE = frozenset({"erase"})
ANN = {"user_id": "ann", "tenant_id": "t1"}


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
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = await shown(served, erasure)
        if wanted.items() <= found.items():
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(found)


async def test_erasure_is_stored_carried_out_and_ends_with_receipt(served: Served) -> None:
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
    assert receipt.is_of(Person("ann", "t1"))
    assert served.eraser.calls == [Person("ann", "t1")]
    assert "ann" not in repr(vars(served.eraser.erasures))
    again = await asked(served, **ANN)
    assert again["erasure_id"] != first["erasure_id"]


async def test_tenant_with_many_erasures_does_not_delay_another() -> None:
    async with serving() as served, running(served.erasures):
        served.eraser.go.clear()
        many = [await asked(served, user_id=f"u{n}", tenant_id="t1") for n in range(AT_A_TIME + 2)]
        await until(served, many[OF_A_TENANT - 1], state="running")
        other = await asked(served, user_id="ann", tenant_id="t2")
        await until(served, other, state="running")
        assert [person.tenant_id for person in served.eraser.calls] == ["t1"] * OF_A_TENANT + ["t2"]
        served.eraser.go.set()
        for erasure in many:
            await until(served, erasure, state="done")


async def test_key_has_a_limited_number_of_open_erasures() -> None:
    async with serving(Holder(scopes=ERASE, tenant_id="t1")) as served:
        for n in range(MOST_OPEN):
            await asked(served, user_id=f"u{n}")
        refused = await served.client.post(PATH, json={"user_id": "ann"})
        assert (refused.status_code, refused.json()["error_type"]) == (429, "too_many_erasures")
        assert "retry-after" in refused.headers
        await asked(served, user_id="u0")  # it is under way
        await served.erasures.ask(Person("ann", "t1"), None, "another key")


async def test_erasure_shows_what_it_waits_for() -> None:
    async with serving() as served, running(served.erasures):
        served.eraser.go.clear()
        erasure = await asked(served, **ANN)
        step = {"stage": "records that the archiver has not processed", "left": 7}
        assert (await until(served, erasure, progress=step))["state"] == "running"


async def test_failed_erasure_is_shown_and_retried(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afterword.operating.eraser.RETRY_SECONDS", 1.0)
    served.eraser.errors = [
        NotErased(seconds=300.0, left=2, what="records"),
        BrokerUnavailable(servers="kafka.internal:9092", problem="NodeNotReadyError"),
        RuntimeError("kafka.internal"),
    ]
    problems: dict[str, str] = {}
    async with running(served.erasures):
        erasure = await asked(served, **ANN)
        while (found := await shown(served, erasure))["state"] != "done":
            if found["problem"]:
                problems[found["problem"]["error_type"]] = found["problem"]["detail"]
            await asyncio.sleep(0.01)
    assert list(problems) == ["not_erased", "broker_unavailable", "runtime_error"]
    assert "not erased after 300 s: 2 records" in problems["not_erased"]
    assert "internal" not in repr(problems)
    assert found["problem"] is None
    assert len(served.eraser.calls) == 4


async def test_server_resumes_erasures_of_another_that_ended(served: Served) -> None:
    served.eraser.go.clear()
    async with running(served.erasures):
        erasure = await asked(served, **ANN)
        await until(served, erasure, state="running")
    served.eraser.go.set()
    async with running(ErasureRunner(served.eraser.erasures, served.eraser.prepare, served.eraser.opened)):
        done = await until(served, erasure, state="done")
    assert done["receipt"]["receipt_id"] == erasure["erasure_id"]


async def test_erasure_ended_by_another_server_is_not_repeated(served: Served) -> None:
    erasure = await asked(served, **ANN)
    other = ErasureRunner(served.eraser.erasures, served.eraser.prepare, served.eraser.opened)
    async with running(other):
        await until(served, erasure, state="done")
    async with running(served.erasures):
        await until(served, await asked(served, user_id="bob", tenant_id="t1"), state="done")
    assert served.eraser.calls == [Person("ann", "t1"), Person("bob", "t1")]


async def test_erased_person_is_that_of_the_api_key() -> None:
    async with serving(Holder(tenant_id="t1", user_id="ann", scopes=ERASE)) as served, running(served.erasures):
        await until(served, await asked(served), state="done")
        await until(served, await asked(served, user_id="ann"), state="done")
        assert served.eraser.calls == [Person("ann", "t1")] * 2
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
async def test_erasure_is_shown_to_its_user_and_tenant_only(fields: dict[str, Any], status: int, is_done: bool) -> None:
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


@with_rows
async def test_wrong_request_erases_nobody(served: Served, body: dict[str, Any], field: str) -> None:
    answer = await served.client.post(PATH, json=body)
    assert (answer.status_code, answer.json()["problems"][0]["field"]) == (422, field)
    assert served.eraser.erasures.erasures == {}
