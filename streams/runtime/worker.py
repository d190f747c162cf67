"""One worker process: start, watch, drain on SIGTERM."""

import asyncio
import ctypes
import os
import signal
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog

from afterword.streams.runtime.app import App
from afterword.streams.runtime.collector import spare_the_collector
from afterword.streams.runtime.errors import Stalled
from afterword.streams.runtime.health import Readiness
from afterword.streams.runtime.lag import standings
from afterword.streams.runtime.moved import remove_regularly
from afterword.streams.runtime.sources import watch_sources
from afterword.streams.runtime.watchdog import Watchdog, remember_stall

log = structlog.get_logger()

PARTITIONS = "partitions"
"""Readiness condition: the worker is in its group, and each of its partitions is recovered."""
WATCH_SECONDS = 0.2
START_SECONDS = 60.0
"""Generous: connecting has its own timeout."""
STOP_SECONDS = 4.0
"""Time after the drain for leaving the group and closing connections, whether or not the broker answers."""


async def run(app: App, readiness: Readiness | None = None) -> None:
    """Run until SIGTERM or SIGINT, then drain and return. Raises: whatever made the app crash.

    If the stop takes longer than `drain_seconds` and `STOP_SECONDS` together, the process exits: the next owner does
    what was not committed. After a signal this includes all that the process closes after this returns.
    """
    await run_together({PARTITIONS: app}, readiness or Readiness(PARTITIONS))


async def run_together(apps: Mapping[str, App], readiness: Readiness) -> None:
    """Run apps as `run` does, by their readiness conditions; one that crashes stops the others.

    Raises: whatever made the first one crash.
    """
    stop, ended = asyncio.Event(), asyncio.Event()
    drain_seconds = max(app.engine.drain_seconds for app in apps.values())
    timer = StopTimer(", ".join(app.conf.id for app in apps.values()), drain_seconds)
    loop = asyncio.get_running_loop()

    def asked_to_stop() -> None:
        stop.set()
        ended.set()
        timer.begin(code=0)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop)
    runs = [_Run(app, condition, readiness, timer, frozenset(apps)) for condition, app in apps.items()]
    try:
        found = await asyncio.gather(*[one.until(ended) for one in runs], return_exceptions=True)
    finally:
        if not stop.is_set():
            timer.cancel()
    for error in found:
        if error is not None:
            raise error
    log.info("app_stopped", app=", ".join(app.conf.id for app in apps.values()))


class _Run:
    """One app of a process. `conditions`: those of all its apps."""

    def __init__(
        self, app: App, condition: str, readiness: Readiness, timer: "StopTimer", conditions: frozenset[str]
    ) -> None:
        self._app = app
        self._condition = condition
        self._readiness = readiness
        self._timer = timer
        self._conditions = conditions

    async def until(self, ended: asyncio.Event) -> None:
        """Run until the event is set, and set it when the app has crashed. Raises: whatever made it crash."""
        app = self._app
        try:
            async with running(app):
                spare_the_collector()
                return_freed_memory()
                watches = (self._show(), self._guard(), _measure(app))
                others = (watch_sources(app), remove_regularly(app))
                watchers = [asyncio.create_task(w) for w in (*watches, *others)]
                watchers.append(asyncio.create_task(crash_with(app, tuple(watchers))))
                try:
                    await app.wait_first(ended)
                finally:
                    for watcher in watchers:
                        watcher.cancel()
                    self._readiness.not_ready(self._condition, "stopping")
                    log.info("drain_started", app=app.conf.id)
                    self._timer.begin(code=int(app.crashed))
        finally:
            ended.set()

    async def _guard(self) -> None:
        """Crash the app when it makes no progress."""
        app, readiness = self._app, self._readiness
        try:
            await Watchdog(app, lambda: bool(readiness.reasons.keys() - self._conditions)).run()
        except Stalled as error:
            app.engine_metrics.stalled()
            log.error(
                "worker_stalled", app=app.conf.id, stage="watchdog", error_type=error.error_type, problem=str(error)
            )
            try:
                await asyncio.to_thread(remember_stall, app.stalls_file)
            except OSError as unwritten:
                failure = type(unwritten).__name__
                log.warning("stall_not_remembered", app=app.conf.id, stage="watchdog", error_type=failure)
            await app.crash(error)

    async def _show(self) -> None:
        while True:
            if self._app.consumer.ready:
                self._readiness.ready(self._condition)
            else:
                self._readiness.not_ready(self._condition, "recovering")
            await asyncio.sleep(WATCH_SECONDS)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Parameters of glibc's mallopt."""
LARGE_BYTES = 256 * 1024
"""An allocation that gets pages of its own, which go back to the system when it is freed."""


def allocate_sparingly() -> None:
    """Let all threads allocate from one arena, and keep little of what they free. Before there are threads.

    By default each thread has its own, and each of them keeps what it has once needed: 13 MB in a summarizer. Threads
    of Python seldom wait for each other there, because one of them runs at a time. A segmenter with a million open
    conversations takes 34 MB less, and recovers them a sixth more slowly. Without glibc it does nothing.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        for parameter, value in ((M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, LARGE_BYTES), (M_TRIM_THRESHOLD, LARGE_BYTES)):
            option(parameter, value)


def return_freed_memory() -> None:
    """Return to the system what loading has freed, some 10 MB. The allocator would keep it; only glibc's is asked."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@asynccontextmanager
async def running(app: App) -> AsyncIterator[App]:
    """Start the app, and stop it at the end. Raises: whatever made it crash."""
    try:
        await _started(app)
        yield app
    finally:
        await app.stop()
    if app.crashed:
        raise app.crash_reason


class StopTimer:
    """Exits the process if its stop takes too long. A thread: Faust's services swallow cancellation when they stop."""

    def __init__(self, name: str, drain_seconds: float) -> None:
        self._name = name
        self._seconds = drain_seconds + STOP_SECONDS
        self._timer: threading.Timer | None = None

    def begin(self, code: int) -> None:
        """Start the timer, once. `code`: exit code if it runs out."""
        if self._timer is None:
            self._timer = threading.Timer(self._seconds, self._leave, [code])
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _leave(self, code: int) -> None:
        log.error("stop_timed_out", app=self._name, stage="stop", error_type="stop_timed_out")
        os._exit(code)


async def _started(app: Any) -> None:
    try:
        async with asyncio.timeout(START_SECONDS):
            await app.start()
    except TimeoutError:
        raise Stalled(what="the worker does not start", seconds=START_SECONDS) from None


async def crash_with(app: Any, watchers: Sequence[asyncio.Task[None]]) -> None:
    """Crash the app when one of its watchers fails: a worker must not go on without its watchdog."""
    done, _ = await asyncio.wait(watchers, return_when=asyncio.FIRST_EXCEPTION)
    for watcher in done:
        if not watcher.cancelled() and (error := watcher.exception()) is not None:
            log.error("watcher_failed", app=app.conf.id, stage="engine", error_type=type(error).__name__)
            await app.crash(error)


async def _measure(app: Any) -> None:
    async for found in standings(app):
        app.engine_metrics.show(found)
