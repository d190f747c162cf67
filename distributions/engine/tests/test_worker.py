"""Errors, and how they end a worker."""

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import errors

from faust_eos.app import crash_with, run_together
from faust_eos.errors import FATAL, TRANSIENT, place_of, refuses_record, restart_seconds
from faust_eos.health import Readiness


class Crashing:
    """An app that remembers what crashed it."""

    conf = SimpleNamespace(id="app")

    def __init__(self) -> None:
        self.reasons: list[BaseException] = []

    async def crash(self, reason: BaseException) -> None:
        self.reasons.append(reason)


async def fail() -> None:
    raise LookupError("unforeseen")


async def test_failing_watcher_crashes_its_app() -> None:
    app = Crashing()
    endless = asyncio.create_task(asyncio.Event().wait())
    await crash_with(app, (endless, asyncio.create_task(fail())))  # type: ignore[arg-type]  # the type of the result does not matter
    assert [type(reason) for reason in app.reasons] == [LookupError]
    endless.cancel()


async def test_cancelled_watcher_crashes_nothing() -> None:
    app = Crashing()
    endless = asyncio.create_task(asyncio.Event().wait())
    endless.cancel()
    await crash_with(app, (endless,))  # type: ignore[arg-type]  # the type of the result does not matter
    assert app.reasons == []


async def test_sigterm_after_a_failed_start_still_forces_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, left = asyncio.get_running_loop(), asyncio.Event()

    async def stop() -> None: ...

    monkeypatch.setattr("faust_eos.app.STOP_SECONDS", 0.01)
    monkeypatch.setattr(os, "_exit", lambda _: loop.call_soon_threadsafe(left.set))
    app: Any = SimpleNamespace(conf=Crashing.conf, engine=SimpleNamespace(drain_seconds=0.0), start=fail, stop=stop)
    try:
        with pytest.raises(LookupError):
            await run_together({"partitions": app}, Readiness("partitions"))
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(5):
            await left.wait()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)


async def test_stop_that_times_out_after_failure_exits_nonzero(monkeypatch: pytest.MonkeyPatch) -> None:
    """An app that another one's failure stops has not crashed, but a supervisor must start the process again."""
    loop, left, codes = asyncio.get_running_loop(), asyncio.Event(), list[int]()

    async def nothing() -> None: ...

    async def stop() -> None:
        await left.wait()

    async def wait_first(ended: asyncio.Event) -> None:
        await ended.wait()

    async def fails(_: asyncio.Event) -> None:
        await fail()

    def leave(code: int) -> None:
        codes.append(code)
        loop.call_soon_threadsafe(left.set)

    monkeypatch.setattr("faust_eos.app.STOP_SECONDS", 0.01)
    monkeypatch.setattr(os, "_exit", leave)
    app: Any = SimpleNamespace(conf=Crashing.conf, engine=SimpleNamespace(drain_seconds=0.0), crashed=False)
    vars(app).update(start=nothing, stop=stop, wait_first=wait_first, consumer=SimpleNamespace(ready=True))
    try:
        async with asyncio.timeout(5):
            with pytest.raises(LookupError):
                await run_together({"partitions": app}, Readiness("partitions"), [fails])
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)
    assert codes == [1]


async def test_first_failure_in_time_is_raised_whatever_stops_first() -> None:
    loop, first_failed = asyncio.get_running_loop(), asyncio.Event()

    async def nothing() -> None: ...

    def app_of(wait_first: Any, reason: Exception, stop: Any = nothing) -> Any:
        app: Any = SimpleNamespace(conf=Crashing.conf, engine=SimpleNamespace(drain_seconds=60.0), crashed=True)
        vars(app).update(start=nothing, stop=stop, wait_first=wait_first, consumer=SimpleNamespace(ready=True))
        app.crash_reason = reason
        return app

    second_stopped = asyncio.Event()

    async def crash_first(_: asyncio.Event) -> None:
        first_failed.set()

    async def crash_second(_: asyncio.Event) -> None:
        await first_failed.wait()

    async def stop_second() -> None:
        second_stopped.set()

    apps = {
        "second": app_of(crash_second, ValueError("second"), stop_second),
        "first": app_of(crash_first, LookupError("first"), second_stopped.wait),
    }
    try:
        async with asyncio.timeout(5):
            with pytest.raises(LookupError, match="first"):
                await run_together(apps, Readiness("second", "first"))
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)


@pytest.mark.parametrize(
    "error",
    [
        errors.ProducerFenced,
        errors.IllegalOperation,  # the producer was fenced between two sends of one commit
        errors.InvalidProducerEpoch,
        errors.KafkaConnectionError,
        errors.KafkaTimeoutError,
        errors.NotEnoughReplicasError,
        ConnectionResetError,
        TimeoutError,
    ],
)
def test_transient_kafka_errors_are_retried(error: type[Exception]) -> None:
    assert issubclass(error, TRANSIENT)
    assert not issubclass(error, FATAL)


@pytest.mark.parametrize("code", [32, 43, 44, 76, 87])
def test_error_about_a_record_refuses_that_record(code: int) -> None:
    error = errors.for_code(code)()
    assert error.errno == code
    assert refuses_record(error)


@pytest.mark.parametrize("code", [-1, 2, 3, 6, 7, 10, 18, 19, 29, 45, 47, 48, 51, 56, 59, 74, 89, 90, 100, 120])
def test_error_about_anything_else_refuses_no_record(code: int) -> None:
    assert not refuses_record(errors.for_code(code)())


@pytest.mark.parametrize("error", [errors.MessageSizeTooLargeError, errors.TopicAuthorizationFailedError])
def test_permanent_kafka_error_stops_the_worker(error: type[Exception]) -> None:
    assert issubclass(error, FATAL)


def test_failed_partition_opening_backs_off_up_to_one_heartbeat() -> None:
    assert [restart_seconds(0.4, failures) for failures in (1, 2, 3, 10_000)] == pytest.approx([0.6, 1.2, 2.0, 2.0])
    assert restart_seconds(3.0, 1) == restart_seconds(3.0, 9) == 4.5


def test_error_location_is_the_innermost_line_of_the_application() -> None:
    library: dict[str, Any] = {"__name__": "library"}
    exec("def fails():\n  {}[0]", library)

    def agent() -> None:
        library["fails"]()

    with pytest.raises(KeyError) as raised:
        agent()
    assert place_of(raised.value) == f"KeyError at {__name__}:{agent.__code__.co_firstlineno + 1}"
