"""Conditions for the next try of a fallback."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from afterword.streams.errors import AnswerInvalid, ProviderUnavailable
from afterword.streams.settings import Retry
from afterword.streams.summarizer.agent import retries_schema
from afterword.streams.summarizer.providers import Provider
from afterword.streams.summarizer.retries import LONGEST_WAIT_SECONDS, NOT_BEFORE, RetryHold, Try, headers_of
from tests.doubles.provider import ScriptedProvider
from tests.samples import NOON
from tests.unit.runtime.concurrent import Broker, Worker
from tests.virtual_time import run_in_virtual_time

RETRY = Retry(longest_delay_seconds=900)


class Llm(ScriptedProvider):
    """Remembers when it was checked; before the n-th check `before` is called with n."""

    def __init__(self, before: Callable[[int], None] = lambda _: None) -> None:
        super().__init__()
        self.checked_at: list[float] = []
        self._before = before

    async def check(self) -> None:
        self.checked_at.append(asyncio.get_running_loop().time())
        self._before(len(self.checked_at))
        await super().check()


def a_record(*headers: tuple[str, bytes]) -> Any:
    return SimpleNamespace(headers=headers)


def due_in(seconds: float) -> Any:
    return a_record(*headers_of(Try(1, 0, NOON + timedelta(seconds=seconds))))


def held_seconds(llm: Provider, record: Any) -> float:
    async def hold() -> float:
        await RetryHold(llm, RETRY, lambda: NOON).hold(record)
        return asyncio.get_running_loop().time()

    return run_in_virtual_time(hold())


@pytest.mark.parametrize(
    ("record", "seconds"),
    [
        (due_in(30), 30),
        (due_in(-30), 0),
        (due_in(10**9), 900),
        (a_record(), 0),
        (a_record((NOT_BEFORE, b"soon")), 0),
    ],
    ids=["due later", "overdue", "written by a wrong clock", "no time", "no time that can be read"],
)
def test_a_record_waits_for_its_time_but_never_longer_than_the_longest_delay(record: Any, seconds: float) -> None:
    assert held_seconds(ScriptedProvider(), record) == seconds


def test_it_opens_when_the_llm_answers_and_says_once_that_it_waits() -> None:
    def answers_at_last(checks: int) -> None:
        if checks == 12:
            llm.outage = None

    llm = Llm(answers_at_last)
    llm.outage = ProviderUnavailable(problem="x")
    with capture_logs() as logs:
        held_seconds(llm, due_in(0))
    waits = [after - before for before, after in zip(llm.checked_at, llm.checked_at[1:], strict=False)]
    assert len(waits) == 11
    assert 0.5 <= waits[0] <= 1.5
    assert waits[2] > waits[0]
    assert max(waits) == pytest.approx(LONGEST_WAIT_SECONDS)
    paused = [entry for entry in logs if entry["event"] == "retries_paused"]
    assert [(entry["stage"], entry["error_type"]) for entry in paused] == [("retry", "provider_unavailable")]


def test_what_cannot_be_checked_is_tried() -> None:
    llm = Llm()
    llm.outage = AnswerInvalid(problem="its list of models is no JSON")
    assert held_seconds(llm, due_in(0)) == 0
    assert len(llm.checked_at) == 1


PUT_ASIDE = headers_of(Try(1, 0, NOON + timedelta(seconds=30), waits=True))


def test_a_change_that_was_put_aside_waits_for_its_time_and_not_for_the_llm() -> None:
    llm = Llm()
    llm.outage = ProviderUnavailable(problem="x")
    assert held_seconds(llm, a_record(*PUT_ASIDE)) == 30
    assert llm.checked_at == []


def test_changes_that_were_put_aside_pass_fallbacks_that_wait_for_the_llm_and_fallbacks_stay_in_order() -> None:
    """Offsets 1, 3 and 4 are changes, the last two of one conversation; the others are fallbacks."""

    async def story() -> tuple[list[int], list[int]]:
        llm, broker = Llm(), Broker(40)
        llm.outage = ProviderUnavailable(problem="x")
        broker.headers = {1: PUT_ASIDE, 3: PUT_ASIDE, 4: PUT_ASIDE, 39: PUT_ASIDE}
        broker.keys = {3: b"c", 4: b"c"}
        worker = Worker(broker, schema=retries_schema(RetryHold(llm, RETRY, lambda: NOON).hold))
        await asyncio.sleep(100)
        changes = [*worker.begun]
        llm.outage = None
        await asyncio.sleep(200)
        await worker.partition.stop(0)
        return changes, worker.begun[len(changes) :]

    changes, fallbacks = run_in_virtual_time(story())
    assert sorted(changes) == [1, 3, 4, 39]
    assert changes.index(3) < changes.index(4)
    assert fallbacks == [offset for offset in range(40) if offset not in changes]
