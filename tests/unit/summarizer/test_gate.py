"""What a fallback's next try waits for."""

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from afterword.streams.errors import ProviderMisconfigured, ProviderUnavailable
from afterword.streams.settings import Retry
from afterword.streams.summarizer.gate import LONGEST_WAIT_SECONDS, Gate
from afterword.streams.summarizer.providers import ScriptedProvider
from afterword.streams.summarizer.retries import NOT_BEFORE, Try, headers_of
from tests.samples import NOON

RETRY = Retry(longest_delay_seconds=900)


class Pauses:
    """Remembers how long it was asked to wait; `then` is done before it comes back."""

    def __init__(self, then: Callable[[int], None] = lambda _: None) -> None:
        self.seconds: list[float] = []
        self._then = then

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self._then(len(self.seconds))


def a_record(*headers: tuple[str, bytes]) -> Any:
    return SimpleNamespace(headers=headers)


def due_in(seconds: float) -> Any:
    return a_record(*headers_of(Try(1, 0, NOON + timedelta(seconds=seconds))))


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
async def test_a_record_waits_for_its_time_but_never_longer_than_the_longest_delay(record: Any, seconds: float) -> None:
    pauses = Pauses()
    await Gate(ScriptedProvider(), RETRY, lambda: NOON, pauses).hold(record)
    assert pauses.seconds == [seconds]


async def test_it_opens_when_the_llm_answers_and_says_once_that_it_waits() -> None:
    llm = ScriptedProvider()
    llm.outage = ProviderUnavailable(problem="x")

    def answers_at_last(pauses: int) -> None:
        if pauses == 12:
            llm.outage = None

    pauses = Pauses(answers_at_last)
    with capture_logs() as logs:
        await Gate(llm, RETRY, lambda: NOON, pauses).hold(due_in(0))
    assert len(pauses.seconds) == 12
    assert pauses.seconds[1] <= 1.5
    assert pauses.seconds[3] > pauses.seconds[1]
    assert max(pauses.seconds) <= 1.5 * LONGEST_WAIT_SECONDS
    assert [(entry["stage"], entry["error_type"]) for entry in logs] == [("retry", "provider_unavailable")]


async def test_what_cannot_be_checked_is_tried() -> None:
    llm = ScriptedProvider()
    llm.outage = ProviderMisconfigured(problem="it knows no such address")
    pauses = Pauses()
    await Gate(llm, RETRY, lambda: NOON, pauses).hold(due_in(0))
    assert pauses.seconds == [0]
