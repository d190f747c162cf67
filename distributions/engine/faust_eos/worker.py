"""One worker process: it starts, is watched, and drains on SIGTERM."""

import asyncio
import ctypes
import os
import re
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from faust_eos.app import App
from faust_eos.collector import spare_the_collector
from faust_eos.database import read_position
from faust_eos.errors import Stalled, StoreFailed
from faust_eos.health import Readiness
from faust_eos.lag import partition_statuses
from faust_eos.sources import watch_sources
from faust_eos.watchdog import Watchdog, remember_stall

log = structlog.get_logger()

PARTITIONS = "partitions"
"""Readiness condition: the worker is in its group and each of its partitions is recovered."""
WATCH_SECONDS = 0.2
START_SECONDS = 60.0
"""Generous, because connecting has its own timeout."""
STOP_SECONDS = 4.0
"""Time after the drain to leave the group and close connections, whether or not the broker answers."""
NAME = re.compile(r"(.+)-(\d+)")
REMOVED = ".removed"
"""Suffix of a directory that is being removed."""


async def run(app: App, readiness: Readiness | None = None) -> None:
    """Run until SIGTERM or SIGINT, then drain and return. Raises: whatever made the app crash.

    If the stop takes longer than `drain_seconds` and `STOP_SECONDS` together, the process exits; the next owner does
    whatever was not committed. After a signal, this time also covers whatever the process closes after this returns.
    """
    await run_together({PARTITIONS: app}, readiness or Readiness(PARTITIONS))


async def run_together(apps: Mapping[str, App], readiness: Readiness) -> None:
    """Run several apps as `run` does, each given with its readiness condition; one that crashes stops the others.

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
    """One app of a process. `conditions` are the readiness conditions of all apps in the process."""

    def __init__(
        self, app: App, condition: str, readiness: Readiness, timer: "StopTimer", conditions: frozenset[str]
    ) -> None:
        self._app = app
        self._condition = condition
        self._readiness = readiness
        self._timer = timer
        self._conditions = conditions

    async def until(self, ended: asyncio.Event) -> None:
        """Run until the event is set, and set it if the app crashes. Raises: whatever made it crash."""
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
        """Crash the app if it makes no progress."""
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
"""An allocation of this size gets pages of its own, which go back to the system when it is freed."""


def allocate_sparingly() -> None:
    """Let all threads allocate from one arena, and keep little of what they free. Call this before starting threads.

    By default each thread has its own arena, which keeps whatever the thread once needed: 13 MB in a summarizer.
    Python's threads seldom wait for each other in the allocator, because only one of them runs at a time. A segmenter
    with a million open conversations takes 34 MB less, and recovers them a sixth more slowly. Without glibc this does
    nothing.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        for parameter, value in ((M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, LARGE_BYTES), (M_TRIM_THRESHOLD, LARGE_BYTES)):
            option(parameter, value)


def return_freed_memory() -> None:
    """Return the memory that loading has freed, some 10 MB, to the system; glibc's allocator would keep it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@asynccontextmanager
async def running(app: App) -> AsyncIterator[App]:
    """Start the app, and stop it at the end of the block. Raises: whatever made it crash."""
    try:
        await _started(app)
        yield app
    finally:
        await app.stop()
    if app.crashed:
        raise app.crash_reason


class StopTimer:
    """Exits the process if its stop takes too long; a thread, because Faust's services swallow cancellation on stop."""

    def __init__(self, name: str, drain_seconds: float) -> None:
        self._name = name
        self._seconds = drain_seconds + STOP_SECONDS
        self._timer: threading.Timer | None = None

    def begin(self, code: int) -> None:
        """Start the timer, once. `code` is the exit code if it runs out."""
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
    """Crash the app if one of its watchers fails: a worker must not continue without its watchdog."""
    done, _ = await asyncio.wait(watchers, return_when=asyncio.FIRST_EXCEPTION)
    for watcher in done:
        if not watcher.cancelled() and (error := watcher.exception()) is not None:
            log.error("watcher_failed", app=app.conf.id, stage="engine", error_type=type(error).__name__)
            await app.crash(error)


async def _measure(app: Any) -> None:
    async for found in partition_statuses(app):
        app.engine_metrics.show(found)


@dataclass(frozen=True, slots=True)
class LocalState:
    """A partition's state on this worker's disk."""

    path: Path
    source: TopicPartition
    offset: int
    """Next offset of the source; −1 before the first transaction."""
    written_ms: int
    """Time at which the state was last up to date; 0 if it never was."""


def superseded(
    kept: Iterable[LocalState],
    assigned: Collection[TopicPartition],
    committed: Mapping[TopicPartition, int],
    now_ms: int,
    grace_ms: int,
) -> list[LocalState]:
    """Select the state that may be deleted.

    This is the case if this worker does not have the partition, if the group's committed offset shows that another
    owner has advanced it, and if the state was not used during the grace time. A partition that comes back soon need
    not be rebuilt.
    """
    return [
        state
        for state in kept
        if state.source not in assigned
        and committed.get(state.source, -1) > state.offset
        and now_ms - state.written_ms > grace_ms
    ]


async def remove_regularly(app: Any) -> None:
    """Remove such state every `moved_look_seconds`, while the worker is in its group."""
    while True:
        await asyncio.sleep(app.engine.moved_look_seconds)
        try:
            await remove_moved(app)
        except (KafkaError, TimeoutError, OSError) as error:
            log.warning("moved_state_kept", stage="state", error_type=type(error).__name__)


async def remove_moved(app: Any) -> None:
    """Remove the local state of partitions that have moved to other workers, which have since advanced them.

    The state is a cache of the changelogs, but it stays on the disk of every worker that ever had the partition.
    Raises: KafkaError, TimeoutError, OSError.
    """
    consumer, directory = app.consumer, app.conf.tabledir
    await asyncio.to_thread(_clear, directory)  # left over from an earlier run
    sources = {topic for table in app.tables.values() for topic in consumer.kafka.subscription() if table.takes(topic)}
    kept = await asyncio.to_thread(_local_states, directory, sources, consumer.kafka.assignment())
    committed = {state.source: int(await consumer.kafka.committed(state.source) or -1) for state in kept}
    grace_seconds = max(app.engine.moved_grace_seconds, app.conf.broker_session_timeout)
    # Nothing is awaited from here to the renaming, so no partition can be assigned and opened in between
    if consumer.joined:
        assigned = {*consumer.kafka.assignment(), *consumer.partitions}
        for state in superseded(kept, assigned, committed, app.engine.clock(), int(grace_seconds * 1000)):
            state.path.rename(state.path.with_name(state.path.name + REMOVED))
            where = {"topic": state.source.topic, "partition": state.source.partition}
            log.info("moved_state_removed", **where, offset=state.offset, committed=committed[state.source])
    await asyncio.to_thread(_clear, directory)


def _clear(directory: Path) -> None:
    """Delete the directories whose removal has begun."""
    for leftover in directory.glob(f"*{REMOVED}"):
        shutil.rmtree(leftover, ignore_errors=True)


def _local_states(directory: Path, topics: Collection[str], assigned: Collection[TopicPartition]) -> list[LocalState]:
    """Return the readable state of these topics' partitions that are not assigned to this worker."""
    kept: list[LocalState] = []
    for path in directory.iterdir() if directory.exists() else ():
        name = NAME.fullmatch(path.name)
        source = TopicPartition(name[1], int(name[2])) if name else None
        if source is not None and source.topic in topics and source not in assigned and path.is_dir():
            try:
                position = read_position(path)
            except StoreFailed as error:  # damaged, or its creation was interrupted; other state may still be removed
                log.warning("moved_state_unreadable", stage="state", error_type=error.error_type, path=str(path))
                continue
            kept.append(LocalState(path, source, position.source, position.written_ms))
    return kept
