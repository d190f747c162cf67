"""Requests for erasures are held by one at a time, and what is left of one that has ended names nobody."""

from dataclasses import replace
from datetime import timedelta

from afterword.streams.stores.erasures import ErasureRequest, ErasureRequests
from tests.samples import NOON

REQUEST = ErasureRequest("r1", NOON, "ann", "acme", "c1", "the officer", held_until=NOON)
LATER = NOON + timedelta(seconds=30)


async def test_a_request_is_stored_once(erasure_requests: ErasureRequests) -> None:
    assert await erasure_requests.add(REQUEST) == REQUEST
    assert await erasure_requests.add(replace(REQUEST, user_id="bob")) == REQUEST
    assert await erasure_requests.find("r1") == REQUEST
    assert await erasure_requests.find("r2") is None


async def test_one_holds_it_until_it_lets_go_or_its_time_is_over(erasure_requests: ErasureRequests) -> None:
    await erasure_requests.add(REQUEST)
    taken = await erasure_requests.take("first", NOON, LATER)
    assert taken == replace(REQUEST, holder="first", held_until=LATER)
    assert await erasure_requests.take("second", LATER - timedelta(seconds=1), LATER) is None
    assert await erasure_requests.renew(replace(taken, stage="records", left=3), LATER + timedelta(seconds=30))
    assert await erasure_requests.take("second", LATER, LATER) is None
    after = LATER + timedelta(seconds=30)
    again = await erasure_requests.take("second", after, after + timedelta(seconds=30))
    assert again is not None
    assert (again.holder, again.stage, again.left) == ("second", "records", 3)
    assert not await erasure_requests.renew(taken, after)
    await erasure_requests.put_off(replace(taken, problem="late"), NOON)
    assert await erasure_requests.find("r1") == again

    await erasure_requests.put_off(replace(again, problem="not_erased", detail="2 records"), after)
    waiting = await erasure_requests.find("r1")
    assert waiting is not None
    assert (waiting.holder, waiting.held_until, waiting.problem, waiting.detail) == (
        None, after, "not_erased", "2 records",
    )  # fmt: skip


async def test_the_one_that_waits_longest_is_taken_first(erasure_requests: ErasureRequests) -> None:
    for n in (2, 1, 3):
        await erasure_requests.add(replace(REQUEST, request_id=f"r{n}", held_until=NOON + timedelta(seconds=n)))
    taken = [await erasure_requests.take("first", LATER, LATER + timedelta(seconds=1)) for _ in range(4)]
    assert [one and one.request_id for one in taken] == ["r1", "r2", "r3", None]


async def test_only_the_receipt_is_left_of_one_that_has_ended(erasure_requests: ErasureRequests) -> None:
    await erasure_requests.add(REQUEST)
    await erasure_requests.keep("r1", "{}")
    assert await erasure_requests.find("r1") == replace(REQUEST, receipt="{}")
    for _ in range(2):
        await erasure_requests.end("r1")
    assert await erasure_requests.find("r1") == ErasureRequest("r1", NOON, receipt="{}")
    assert await erasure_requests.take("first", LATER, LATER) is None
    await erasure_requests.end("r2")
    assert await erasure_requests.find("r2") is None
