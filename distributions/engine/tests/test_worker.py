"""A worker stops when one of its watchers has failed, and in limited time after a signal."""

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from faust_eos.app import crash_with, run_together
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
