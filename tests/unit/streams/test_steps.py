"""Steps that are repeated, background tasks, and dead letters."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaTimeoutError
from structlog.testing import capture_logs

from afterword.schemas.dead_letters import read_dead_letter
from afterword.streams.dead_letters import DeadLetters
from afterword.streams.errors import ConfigurationError, ProviderMisconfigured, StoreUnavailable
from afterword.streams.steps import LONGEST_WAIT_SECONDS, MISCONFIGURED_WAIT_SECONDS, backoff_seconds, error_type
from afterword.streams.tasks import RESTS, STEP_SECONDS, FairTurns, Paced, paced
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


RECORD: Any = SimpleNamespace(topic="in", partition=3, offset=7, key=b"k", value=b"v", headers=[], timestamp=0)


def test_dead_letter_has_its_record_and_reason() -> None:
    output = DeadLetters("stage", "in.dlq").of(RECORD, "invalid", "no JSON", now_ms=1000, attempts=4)
    assert (output.topic, output.key, output.value, output.partition) == ("in.dlq", b"k", b"v", None)
    fields = {"topic": output.topic, "key": output.key, "value": output.value, "headers": output.headers}
    letter = read_dead_letter(SimpleNamespace(**fields, partition=0, offset=0, timestamp=0))
    assert (letter.stage, letter.error_type, letter.problem) == ("stage", "invalid", "no JSON")
    assert (letter.origin, letter.failed_at.timestamp()) == (("in", 3, 7), 1)


@pytest.mark.parametrize(("error_type", "level"), [("invalid", "warning"), ("unforeseen", "error")])
def test_dead_letter_is_logged_and_counted(error_type: str, level: str) -> None:
    metrics = Metrics("stage", "1.2.3")
    with capture_logs() as logs:
        DeadLetters("stage", "in.dlq", metrics=metrics).of(RECORD, error_type, "no JSON", now_ms=0)
    where = {"topic": "in", "partition": 3, "offset": 7}
    failure = {"stage": "stage", "error_type": error_type, "problem": "no JSON"}
    assert logs == [{"event": "record_rejected", "log_level": level, **failure, **where}]
    labels = {"stage": "stage", "error_type": error_type}
    assert metrics.registry.get_sample_value("afterword_dead_letters_total", labels) == 1


def test_dead_letter_is_redacted() -> None:
    redaction: Any = SimpleNamespace(dead_letter=lambda key, _, headers: (key, b"[EMAIL]", headers))
    assert DeadLetters("stage", "in.dlq", redaction).of(RECORD, "invalid", "", now_ms=0).value == b"[EMAIL]"


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Work:
    """Work that takes turns, and ends when it is told to."""

    def __init__(self, turns: FairTurns) -> None:
        self._turns = turns
        self.running: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str, size: int = 0) -> None:
        """Begin work of the group that is named by the first letter."""

        async def work() -> None:
            async with self._turns.of(name[0], size):
                self.running[name] = asyncio.Event()
                await self.running[name].wait()
                del self.running[name]

        self.tasks[name] = asyncio.create_task(work())
        await settled()

    async def end(self, name: str) -> None:
        self.running[name].set()
        await self.tasks[name]
        await settled()

    async def end_all(self) -> list[str]:
        """End what runs, again and again, and return the order."""
        order = []
        while self.running:
            order.append(next(iter(self.running)))
            await self.end(order[-1])
        return order


async def test_next_turn_goes_to_the_group_with_fewest() -> None:
    work = Work(FairTurns(each=2, total=3))
    for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        await work.begin(name)
    assert [*work.running] == ["a1", "a2", "b1"]
    await work.end("a1")
    assert [*work.running] == ["a2", "b1", "c1"], "c had none, although a3 and b2 came earlier"
    await work.end_all()


async def test_smaller_work_of_a_group_comes_first() -> None:
    work = Work(FairTurns())
    for name, size in {"a1": 0, "a2": 9, "a3": 1}.items():
        await work.begin(name, size)
    assert await work.end_all() == ["a1", "a3", "a2"]


async def test_new_group_does_not_overtake_others_for_long() -> None:
    work = Work(FairTurns(each=1, total=1))
    await work.begin("a0")
    for n in range(1, 6):
        await work.begin(f"a{n}")
        await work.end(f"a{n - 1}")
    for name in ("a6", "b1", "b2", "b3"):
        await work.begin(name)
    order = await work.end_all()
    assert order.index("a6") < order.index("b3")


async def test_cancelled_work_leaves_its_turn_to_others() -> None:
    work = Work(FairTurns())
    for name in ("a1", "a2", "a3"):
        await work.begin(name)
    for name in ("a2", "a1"):
        work.tasks[name].cancel()
        await settled()
    assert "a3" in work.running
    await work.end("a3")


async def test_work_cancelled_together_with_the_running_gets_no_turn() -> None:
    work = Work(FairTurns())
    for name in ("a1", "a2", "a3"):
        await work.begin(name)
    work.tasks["a1"].cancel()
    work.tasks["a2"].cancel()
    await settled()
    assert work.tasks["a1"].cancelled()
    assert "a3" in work.running
    await work.end("a3")


async def test_group_rests_after_its_work_while_others_begin() -> None:
    loop, turns = asyncio.get_running_loop(), FairTurns(rests=3)
    began = loop.time()
    async with turns.of("a"):
        await asyncio.sleep(0.05)
    worked = loop.time() - began
    async with turns.of("b"):
        assert loop.time() - began < 2 * worked, "another group does not wait"
    async with turns.of("a"):
        assert loop.time() - began >= 4 * worked


async def test_all_paced_work_together_leaves_most_of_the_loop() -> None:
    worked = 0.0

    async def work() -> None:
        nonlocal worked
        async for _ in paced(range(10)):
            began = time.thread_time()
            while time.thread_time() - began < 2 * STEP_SECONDS:
                pass
            worked += time.thread_time() - began

    began = time.monotonic()
    await asyncio.gather(work(), work(), work())
    assert time.monotonic() - began >= (1 + RESTS) * worked * 0.9


async def test_step_that_many_waited_for_is_rested_for_once() -> None:
    works = [Paced() for _ in range(20)]
    began = time.thread_time()
    while time.thread_time() - began < 2 * STEP_SECONDS:
        pass
    before, took = time.monotonic(), time.thread_time() - began
    await asyncio.gather(*(work.rest() for work in works))
    assert time.monotonic() - before < 10 * (1 + RESTS) * took


async def test_single_paced_item_needs_no_rest() -> None:
    async for _ in paced([1]):
        began = time.thread_time()
        while time.thread_time() - began < 20 * STEP_SECONDS:
            pass
        before, took = time.monotonic(), time.thread_time() - began
    assert time.monotonic() - before < took
