"""A Faust app on the engine, and the process that runs it: it starts, is watched, and drains on SIGTERM."""

import asyncio
import os
import shutil
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import faust
import structlog
from aiokafka import AIOKafkaConsumer
from prometheus_client import CollectorRegistry

from faust_eos.batch import take_batch
from faust_eos.database import private_directory
from faust_eos.drivers import Table, TableManager, Transport
from faust_eos.errors import Stalled, StoreFailed
from faust_eos.failures import Breaker
from faust_eos.health import Readiness, Watchdog, remember_stall, stalls_before
from faust_eos.kafka import watch_sources
from faust_eos.metrics import EngineMetrics, measure_regularly
from faust_eos.options import LIFE_CYCLE, Options, return_freed_memory, spare_the_collector
from faust_eos.transaction import MAX_REQUEST_BYTES

log = structlog.get_logger()

MAX_POLL_INTERVAL_SECONDS = 14 * 86400.0
"""Two weeks, which is practically never. A partition whose agent is slow, or that holds a record back, fetches nothing
although its worker is alive. The watchdog ends workers that make no progress much sooner."""
PLAINTEXT = {"security_protocol": "PLAINTEXT"}
PARTITIONS = "partitions"
"""Readiness condition: the worker is in its group and each of its partitions is recovered."""
WATCH_SECONDS = 0.2
START_SECONDS = 60.0
"""Generous, because connecting has its own timeout."""
RunBeside = Callable[[asyncio.Event], Awaitable[None]]
"""What runs in a worker's process until the event is set."""
STOP_SECONDS = 4.0
"""Time after the drain to leave the group and close connections, whether or not the broker answers."""


class App(faust.App):
    """An ordinary `faust.App`: agents, topics, tables and sends are Faust's, and the engine provides their guarantees.

    `brokers` is `host:port`, or several of them separated by commas. `security` holds aiokafka's arguments for TLS and
    SASL, such as `ssl_context`, and applies to every client. By default, `metrics` live in a registry that is not
    exported. `consumer_class` reads the sources; a subclass may limit what it decodes.
    """

    logger = LIFE_CYCLE

    def __init__(
        self,
        app_id: str,
        *,
        brokers: str,
        engine: Options,
        datadir: Path,
        security: Mapping[str, Any] = PLAINTEXT,
        metrics: EngineMetrics | None = None,
        consumer_class: Callable[..., AIOKafkaConsumer] = AIOKafkaConsumer,
        **options: Any,
    ) -> None:
        self.engine = engine
        self.security = security
        self.consumer_class = consumer_class
        self.breaker = Breaker()
        """The breaker that all partitions of this worker share."""
        self.engine_metrics = metrics or EngineMetrics(CollectorRegistry(), app_id)
        super().__init__(
            app_id,
            broker=[f"kafka://{broker.strip()}" for broker in brokers.split(",")],
            datadir=datadir,
            Table=Table,
            TableManager=TableManager,
            stream_wait_empty=True,  # drain before the agents are cancelled
            topic_disable_leader=True,
            topic_allow_declare=False,  # topics are created by the cluster's operator
            producer_max_request_size=MAX_REQUEST_BYTES,
            consumer_auto_offset_reset="earliest",
            broker_max_poll_interval=MAX_POLL_INTERVAL_SECONDS,
            web_enabled=False,
            **options,
        )

    def _new_transport(self) -> Transport:
        return Transport(self.conf.broker_consumer, self)

    def _new_producer_transport(self) -> Transport:
        return Transport(self.conf.broker_producer, self)

    async def on_first_start(self) -> None:
        """Create the data directory and its parents, because Faust creates only the last one, and remove old state.

        Raises: StoreFailed.
        """
        path = self.conf.datadir
        try:
            private_directory(path)
            topics = {name for agent in self.agents.values() for name in getattr(agent.channel, "topics", ())}
            remove_old_state(self.conf.tabledir, topics, time.time() - self.engine.stale_seconds)
        except OSError as error:
            raise StoreFailed(path=path, cause=error.strerror) from error
        self.engine_metrics.stalled(stalls_before(self.stalls_file))
        await super().on_first_start()

    @property
    def stalls_file(self) -> Path:
        """The file that counts how often a stall has ended a process of this worker."""
        return Path(self.conf.datadir) / f"{self.conf.id}-stalls"

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        """Return Faust's stream, whose events bind whatever the agent writes to their batch."""
        stream = super().stream(*args, **kwargs)
        stream.add_processor(take_batch)
        return stream


def remove_old_state(directory: Path, topics: Collection[str], before: float) -> None:
    """Delete local state of these topics that was last written before that Unix time: it is too old to be used.

    Other workers have had its partitions since. Raises: OSError.
    """
    for path in directory.glob("*-[0-9]*"):
        if path.name.rpartition("-")[0] not in topics:
            continue
        # a directory that a killed process has removed in part is still too old
        if max((file.stat().st_mtime for file in path.iterdir()), default=0.0) < before:
            shutil.rmtree(path)
            log.info("old_state_removed", stage="state", path=str(path))


async def run(app: App, readiness: Readiness | None = None) -> None:
    """Run until SIGTERM or SIGINT, then drain and return. Raises: whatever made the app crash.

    If the stop takes longer than `drain_seconds` and `STOP_SECONDS` together, the process exits; the next owner does
    whatever was not committed. After a signal, this time also covers whatever the process closes after this returns.
    """
    await run_together({PARTITIONS: app}, readiness or Readiness(PARTITIONS))


async def run_together(
    apps: Mapping[str, App],
    readiness: Readiness,
    beside: Sequence[RunBeside] = (),
    reported: Mapping[str, Readiness] = MappingProxyType({}),
) -> None:
    """Run several apps as `run` does, each given with its readiness condition; one that crashes stops the others.

    Agents report what they wait for in `readiness`, or in what `reported` has for their app's condition.

    What is run `beside` them returns once its event is set, and stops them if it ends earlier. Raises: whatever made
    the first one end.
    """
    stop, ended = asyncio.Event(), asyncio.Event()
    names = ", ".join(app.conf.id for app in apps.values())
    timer = StopTimer(names, max(app.engine.drain_seconds for app in apps.values()))
    loop = asyncio.get_running_loop()

    def asked_to_stop() -> None:
        stop.set()
        ended.set()
        timer.begin(code=0)

    def agents_wait(condition: str) -> bool:
        """Return whether an app's agents have reported that they wait for a dependency."""
        return bool(reported.get(condition, readiness).reasons.keys() - apps.keys())

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop)
    order = list[int]()  # the ids of what has ended, the first one first
    runs = [
        _run_until(ended, order, app, condition, readiness, partial(agents_wait, condition), timer)
        for condition, app in apps.items()
    ]
    runs += [_run_beside(ended, order, run) for run in beside]
    try:
        outcomes = await asyncio.gather(*runs, return_exceptions=True)
    finally:
        if timer.is_alive() and not stop.is_set():  # a timer that is cancelled before it begins would never run out
            timer.cancel()
    errors = dict(zip(map(id, [*apps.values(), *beside]), outcomes, strict=True))
    for ended_id in order:
        if (error := errors[ended_id]) is not None:
            raise error
    log.info("app_stopped", app=names)


async def _run_beside(ended: asyncio.Event, order: list[int], run: RunBeside) -> None:
    try:
        await run(ended)
    finally:
        order.append(id(run))
        ended.set()


async def _run_until(
    ended: asyncio.Event,
    order: list[int],
    app: App,
    condition: str,
    readiness: Readiness,
    agents_wait: Callable[[], bool],
    timer: "StopTimer",
) -> None:
    """Run until the event is set, and set it if the app crashes. Raises: whatever made it crash.

    The app is added to `order` before it stops, because another one may stop faster, and again once it has stopped.
    """
    try:
        async with running(app):
            spare_the_collector()
            return_freed_memory()
            watches = (_show(app, condition, readiness), _guard(app, agents_wait), measure_regularly(app))
            watchers = [asyncio.create_task(watch) for watch in (*watches, watch_sources(app))]
            watchers.append(asyncio.create_task(crash_with(app, tuple(watchers))))
            try:
                await app.wait_first(ended)
            finally:
                order.append(id(app))
                for watcher in watchers:
                    watcher.cancel()
                readiness.not_ready(condition, "stopping")
                log.info("drain_started", app=app.conf.id)
                timer.begin(code=1)  # after a signal it has begun already
    finally:
        order.append(id(app))
        ended.set()


@asynccontextmanager
async def running(app: Any) -> AsyncIterator[App]:
    """Start the app, and stop it at the end of the block. Raises: whatever made it crash."""
    try:
        try:
            async with asyncio.timeout(START_SECONDS):
                await app.start()
        except TimeoutError:
            raise Stalled(what="the worker does not start", seconds=START_SECONDS) from None
        yield app
    finally:
        await app.stop()
    if app.crashed:
        raise app.crash_reason


class StopTimer(threading.Timer):
    """Exits the process if its stop takes too long; a thread, because Faust's services swallow cancellation on stop."""

    def __init__(self, apps: str, drain_seconds: float) -> None:
        super().__init__(drain_seconds + STOP_SECONDS, self._leave)
        self.daemon = True
        self._apps = apps
        self._code = 0

    def begin(self, code: int) -> None:
        """Start the timer, once. `code` is the exit code if it runs out."""
        if self.ident is None:
            self._code = code
            self.start()

    def _leave(self) -> None:
        log.error("stop_timed_out", app=self._apps, stage="stop", error_type="stop_timed_out")
        os._exit(self._code)


async def crash_with(app: Any, watchers: Sequence[asyncio.Task[None]]) -> None:
    """Crash the app if one of its watchers fails: a worker must not continue without its watchdog."""
    done, _ = await asyncio.wait(watchers, return_when=asyncio.FIRST_EXCEPTION)
    for watcher in done:
        if not watcher.cancelled() and (error := watcher.exception()) is not None:
            log.error("watcher_failed", app=app.conf.id, stage="engine", error_type=type(error).__name__)
            await app.crash(error)


async def _show(app: Any, condition: str, readiness: Readiness) -> None:
    while True:
        if app.consumer.ready:
            readiness.ready(condition)
        else:
            readiness.not_ready(condition, "recovering")
        await asyncio.sleep(WATCH_SECONDS)


async def _guard(app: App, agents_wait: Callable[[], bool]) -> None:
    """Crash the app if it makes no progress."""
    try:
        await Watchdog(app, agents_wait).run()
    except Stalled as error:
        app.engine_metrics.stalled()
        log.error("worker_stalled", app=app.conf.id, stage="watchdog", error_type=error.error_type, problem=str(error))
        with suppress(OSError):  # only the count is lost
            await asyncio.to_thread(remember_stall, app.stalls_file)
        await app.crash(error)
