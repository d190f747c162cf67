import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiokafka.errors import KafkaTimeoutError
from structlog.testing import capture_logs

from afterword.streams.errors import ConfigurationError, ProviderMisconfigured, StoreUnavailable
from afterword.streams.steps import (
    LONGEST_WAIT_SECONDS,
    MISCONFIGURED_WAIT_SECONDS,
    backoff_seconds,
    error_type,
)
from afterword.streams.telemetry.metrics import Metrics
from tests.summarizer_world import RecordedReadiness, a_step_runner

AWAY = StoreUnavailable(store="mongodb", problem="AutoReconnect")


def failing(times: int, error: Exception = AWAY) -> Callable[[], Awaitable[str]]:
    errors = [error] * times

    async def step() -> str:
        if errors:
            raise errors.pop()
        return "done"

    return step


async def test_working_step_runs_once_without_a_report() -> None:
    readiness = RecordedReadiness()
    assert await a_step_runner(readiness).retry_until_success("find", failing(0)) == "done"
    assert readiness.calls == []


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (AWAY, "store_unavailable"),
        (ProviderMisconfigured(problem="x"), "provider_misconfigured"),
        (ConfigurationError(setting="S", problem="x"), "configuration_error"),
    ],
)
async def test_step_repeats_until_it_works_and_health_follows(error: Exception, name: str) -> None:
    readiness = RecordedReadiness()
    assert await a_step_runner(readiness).retry_until_success("find", failing(3, error)) == "done"
    assert readiness.calls == [("not_ready", "find", name)] * 3 + [("ready", "find")]


async def test_other_error_is_raised_at_once() -> None:
    with pytest.raises(ValueError, match="broken"):
        await a_step_runner().retry_until_success("find", failing(1, ValueError("broken")))


async def test_cancellation_ends_the_wait_and_its_reason() -> None:
    readiness = RecordedReadiness()

    began = asyncio.Event()

    def long_wait(_failures: int, _error: Exception) -> float:
        began.set()
        return 3600.0

    waiting = asyncio.create_task(a_step_runner(readiness, long_wait).retry_until_success("find", failing(1)))
    await began.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert readiness.calls == [("not_ready", "find", "store_unavailable"), ("ready", "find")]


async def test_stage_recovers_when_nobody_waits() -> None:
    readiness = RecordedReadiness()
    steps = a_step_runner(readiness)
    await asyncio.gather(*(steps.retry_until_success("find", failing(times)) for times in (1, 5)))
    assert readiness.calls.count(("ready", "find")) == 1
    assert readiness.calls[-1] == ("ready", "find")


async def test_many_waiting_episodes_are_logged_once_per_stage() -> None:
    steps = a_step_runner()
    with capture_logs() as logs:
        await asyncio.gather(*(steps.retry_until_success(stage, failing(20)) for stage in ("find", "index") * 10))
    failed = [line for line in logs if line["event"] == "step_failed"]
    assert sorted(line["stage"] for line in failed) == ["find", "index"]
    assert failed[0]["error_type"] == "store_unavailable"


def test_kafka_errors_have_names_like_ours() -> None:
    assert error_type(KafkaTimeoutError()) == "kafka_timeout"


def test_waits_grow_to_a_bound_with_jitter() -> None:
    first = [backoff_seconds(1, AWAY) for _ in range(100)]
    assert 0.1 <= min(first) < max(first) <= 0.3
    assert all(backoff_seconds(failures, AWAY) <= 1.5 * LONGEST_WAIT_SECONDS for failures in (5, 50, 5000, 10**6))
    for_a_person = [backoff_seconds(1, ProviderMisconfigured(problem="x")) for _ in range(100)]
    assert min(for_a_person) >= MISCONFIGURED_WAIT_SECONDS / 2


async def test_step_is_timed_once_however_often_it_ran() -> None:
    metrics = Metrics("summarizer", "1.2.3")
    await a_step_runner(metrics=metrics).retry_until_success("find", failing(1))
    assert metrics.registry.get_sample_value("afterword_step_duration_seconds_count", {"step": "find"}) == 1


async def test_each_store_call_is_a_step_of_its_stage() -> None:
    class Store:
        def __init__(self) -> None:
            self.find, self.put = failing(2), failing(1)

    readiness = RecordedReadiness()
    store = a_step_runner(readiness).retried(Store(), {"put": "store_rolling"})
    assert [await store.find(), await store.put()] == ["done", "done"]
    told = [("find", 2), ("store_rolling", 1)]
    assert readiness.calls == [
        call for stage, times in told for call in [("not_ready", stage, AWAY.error_type)] * times + [("ready", stage)]
    ]
