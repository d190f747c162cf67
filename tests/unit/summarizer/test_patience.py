import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiokafka.errors import KafkaTimeoutError
from structlog.testing import capture_logs

from afterword.streams.errors import ConfigurationError, ProviderMisconfigured, StoreUnavailable
from afterword.streams.summarizer.patience import (
    LONGEST_WAIT_SECONDS,
    MISCONFIGURED_WAIT_SECONDS,
    Patience,
    error_type,
    wait_seconds,
)

AWAY = StoreUnavailable(store="mongodb", problem="AutoReconnect")


class Told:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.all: list[tuple[str, ...]] = []

    def waiting(self, stage: str, error_type: str) -> None:
        self.all.append(("waiting", stage, error_type))

    def recovered(self, stage: str) -> None:
        self.all.append(("recovered", stage))


async def at_once(seconds: float) -> None:
    await asyncio.sleep(0)


def failing(times: int, error: Exception = AWAY) -> Callable[[], Awaitable[str]]:
    errors = [error] * times

    async def step() -> str:
        if errors:
            raise errors.pop()
        return "done"

    return step


async def test_a_step_that_works_is_done_once_and_nobody_is_told() -> None:
    health = Told()
    assert await Patience(health, at_once).until_done("find", failing(0)) == "done"
    assert health.all == []


@pytest.mark.parametrize(
    "error",
    [AWAY, ProviderMisconfigured(problem="x"), ConfigurationError(setting="S", problem="x"), KafkaTimeoutError()],
)
async def test_a_step_is_repeated_until_it_works_and_health_follows(error: Exception) -> None:
    health = Told()
    assert await Patience(health, at_once).until_done("find", failing(3, error)) == "done"
    assert health.all == [("waiting", "find", error_type(error))] * 3 + [("recovered", "find")]


async def test_an_error_of_another_kind_is_raised_at_once() -> None:
    with pytest.raises(ValueError, match="broken"):
        await Patience(Told(), at_once).until_done("find", failing(1, ValueError("broken")))


async def test_cancellation_ends_the_wait_and_takes_the_reason_for_it_away() -> None:
    health, began = Told(), asyncio.Event()

    async def for_ever(seconds: float) -> None:
        began.set()
        await asyncio.Event().wait()

    waiting = asyncio.create_task(Patience(health, for_ever).until_done("find", failing(1)))
    await began.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert health.all == [("waiting", "find", "store_unavailable"), ("recovered", "find")]


async def test_a_stage_has_recovered_when_nobody_waits_at_it_any_more() -> None:
    health = Told()
    patience = Patience(health, at_once)
    await asyncio.gather(*(patience.until_done("find", failing(times)) for times in (1, 5)))
    assert health.all.count(("recovered", "find")) == 1
    assert health.all[-1] == ("recovered", "find")


async def test_many_waiting_episodes_are_logged_once_for_each_stage() -> None:
    patience = Patience(Told(), at_once)
    with capture_logs() as logs:
        await asyncio.gather(*(patience.until_done(stage, failing(20)) for stage in ("find", "index") * 10))
    assert sorted(line["stage"] for line in logs) == ["find", "index"]
    assert logs[0]["error_type"] == "store_unavailable"


def test_waits_grow_up_to_a_bound_and_are_spread() -> None:
    first = [wait_seconds(0, AWAY) for _ in range(100)]
    assert 0.1 <= min(first) < max(first) <= 0.3
    assert all(wait_seconds(attempt, AWAY) <= 1.5 * LONGEST_WAIT_SECONDS for attempt in (5, 50, 5000, 10**6))


def test_what_somebody_has_to_change_is_asked_for_rarely() -> None:
    waits = [wait_seconds(0, ProviderMisconfigured(problem="x")) for _ in range(100)]
    assert min(waits) >= MISCONFIGURED_WAIT_SECONDS / 2


def test_errors_of_kafka_have_names_like_ours() -> None:
    assert error_type(KafkaTimeoutError()) == "kafka_timeout"
