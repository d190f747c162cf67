"""A worker's life cycle, its views `/metrics` and `/status`, and the Faust app that each role has at least one of.

And what its agents share: lanes, which are concurrent work for many keys in strict order within each key.
"""

import asyncio
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import orjson
import structlog
from aiohttp import web
from opentelemetry.trace import Tracer
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from afterword.streams.errors import AfterwordError
from afterword.streams.installed import running_version
from afterword.streams.kafka.clients import client_id, security
from afterword.streams.kafka.fetching import BoundedConsumer
from afterword.streams.roles import names_of
from afterword.streams.settings import HEARTBEAT_SECONDS, REBALANCE_SECONDS, Llm, Settings, shown_as_dict
from afterword.streams.telemetry.metrics import Metrics
from afterword.streams.telemetry.tracing import LAST_EXPORT_SECONDS, tracer_from
from faust_eos.app import PARTITIONS, App, RunBeside, run_together
from faust_eos.at_least_once import AtLeastOnce, mark_idle, run_in_batch
from faust_eos.batch import current_batch
from faust_eos.errors import AgentFailed
from faust_eos.health import STARTING, HealthServer, Readiness
from faust_eos.metrics import EngineMetrics
from faust_eos.options import Options, allocate_sparingly
from faust_eos.transaction import Output

if TYPE_CHECKING:
    from afterword.streams.stores.opening import Stores

SHOWN_OF_PARTITION = ("topic", "partition", "ready", "lag_records", "lag_seconds", "state_bytes")
LEAST_IN_FLIGHT = 16
"""Minimum of `max_in_flight`, in episodes per partition."""


def engine_options(settings: Settings, **others: Any) -> Options:
    """Translate settings into engine options; `others` are further options, and may replace `max_in_flight`."""
    return Options(
        drain_seconds=settings.drain_seconds,
        revoke_drain_seconds=min(settings.drain_seconds, settings.kafka.revoke_seconds),
        tidy_after_ms=settings.episodes.forget_after_ms,
        **{"max_in_flight": in_flight(settings.llm)} | others,
    )


def in_flight(llm: Llm) -> int:
    """Return the maximum number of episodes in flight per partition.

    It is somewhat more than the LLM's concurrent calls, so that none of them waits for a read, but not much more,
    because each episode takes memory.
    """
    return LEAST_IN_FLIGHT if llm.provider == "extractive" else max(2 * llm.max_concurrency, LEAST_IN_FLIGHT)


def faust_app(
    settings: Settings,
    app_id: str,
    metrics: EngineMetrics | None = None,
    *,
    role: str = "worker",
    **options: Any,
) -> App:
    """Make a Faust app on the engine, without agents.

    `role` is part of its clients' names. `options` are further fields of `Options`. Raises: ConfigurationError.
    """
    kafka = settings.kafka
    return App(
        app_id,
        brokers=kafka.bootstrap_servers,
        engine=engine_options(settings, **options),
        datadir=settings.state_dir,
        broker_client_id=client_id(kafka, role),
        broker_session_timeout=kafka.session_timeout_seconds,
        broker_heartbeat_interval=HEARTBEAT_SECONDS,
        broker_rebalance_timeout=REBALANCE_SECONDS,
        broker_request_timeout=kafka.request_timeout_seconds,
        consumer_group_instance_id=kafka.group_instance_id,
        security=security(kafka),
        metrics=metrics,
        consumer_class=partial(BoundedConsumer, client_rack=kafka.client_rack),
    )


@dataclass(frozen=True)
class Worker:
    """What every role gets to make its apps."""

    settings: Settings
    readiness: Readiness
    metrics: Metrics
    tracer: Tracer
    closing: AsyncExitStack
    """Closes what the role opens, once its apps have stopped."""
    opened: "list[Stores]"

    @property
    def stores(self) -> "Stores":
        """The stores, which roles of one process share: writes of all wait for the disk together. Raises:
        ConfigurationError.
        """
        from afterword.streams.stores.opening import open_stores  # imported here because the segmenter has none

        if not self.opened:
            self.opened.append(open_stores(self.settings))
            self.closing.push_async_exit(self.opened[0])
        return self.opened[0]


Start = Callable[[Worker], Awaitable[dict[str, App]]]
"""Makes a role's apps by their readiness conditions. Raises: AfterwordError, KafkaError."""


async def run_worker(
    role: str, settings: Settings, start: Start | None = None, beside: Sequence[RunBeside] = ()
) -> None:
    """Run a role of `streams.roles`, or `all`, until SIGTERM, then drain. A role that fails ends the others.

    `start` makes its apps in place of the role's own; what is run `beside` them ends with them. Raises:
    AfterwordError, EngineError, KafkaError, OSError (a port).
    """
    allocate_sparingly()
    readiness, names = Readiness(PARTITIONS), names_of(role)
    metrics, shown = Metrics(names[0], running_version(), *names[1:]), shown_as_dict(settings)
    metrics.watch_readiness(lambda: readiness.reasons, PARTITIONS)

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def show_status(_: web.Request) -> web.Response:
        body = orjson.dumps(status(role, metrics, readiness.reasons, shown))
        return web.Response(body=body, content_type="application/json")

    async with AsyncExitStack() as closing:
        tracing = tracer_from(os.environ, role, running_version(), LAST_EXPORT_SECONDS)
        tracer = await closing.enter_async_context(tracing)
        views = {"/metrics": show_metrics, "/status": show_status}
        health = HealthServer(readiness, settings.health.host, settings.health.port, views)
        await closing.enter_async_context(health)
        apps: dict[str, App] = {}
        reported: dict[str, Readiness] = {}
        opened: list[Stores] = []
        for name in names:
            worker = Worker(settings, readiness.part(), metrics, tracer, closing, opened)
            made = await (start or import_module(f"afterword.streams.{name}.agent").start)(worker)
            made = {condition if len(names) == 1 else f"{condition}:{name}": app for condition, app in made.items()}
            apps |= made
            reported |= dict.fromkeys(made, worker.readiness)
        for condition in apps:
            readiness.not_ready(condition, STARTING)
        if PARTITIONS not in apps:  # a role with several apps has a condition for each
            readiness.ready(PARTITIONS)
        try:
            await run_together(apps, readiness, beside, reported)
        except AgentFailed as failed:
            if isinstance(failed.cause, AfterwordError):  # our own errors say what to do
                raise failed.cause from None
            raise


def status(role: str, metrics: Metrics, reasons: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a worker. `reasons` say why it is not ready, and `settings` has no secrets."""
    return {
        "version": running_version(),
        "role": role,
        "ready": not reasons,
        "reasons": dict(reasons),
        "partitions": [
            {name: value for name in SHOWN_OF_PARTITION if (value := getattr(partition, name)) is not None}
            for partition in metrics.partition_statuses
        ],
        "settings": settings,
    }


log = structlog.get_logger(__name__)

K = TypeVar("K", bound=Hashable)
Job = Callable[[], Awaitable[None]]


class Lanes(Generic[K]):
    """Runs handlers, those of one key one after the other. The caller limits the work in flight.

    After a handler that raised, the later ones of its key do not run but fail with its error, until `cancel`.
    `on_error` is called at once and must not raise.
    """

    def __init__(self, on_error: Callable[[K, BaseException], None]) -> None:
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()
        self._last: dict[K, asyncio.Task[None]] = {}
        """The last task of each key."""

    @property
    def in_flight(self) -> int:
        """Number of handlers that are running or queued."""
        return len(self._tasks)

    def submit(self, key: K, handler: Job) -> None:
        """Queue a handler behind the earlier ones of its key."""
        before = self._last.get(key)
        task = self._last[key] = asyncio.create_task(_run_after(before, handler))
        if before is not None and before.cancelling():
            task.cancel()  # it would fail with an error that is none, and stop the worker
        self._tasks.add(task)
        task.add_done_callback(partial(self._end, key))

    async def cancel(self) -> None:
        """Cancel all handlers, and return once none is running."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._last.clear()

    def _end(self, key: K, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            if self._last.get(key) is task:
                del self._last[key]
        elif not task.cancelling():  # the handler may raise CancelledError itself, as a closed client does
            self._on_error(key, error)


async def _run_after(before: asyncio.Task[None] | None, handler: Job) -> None:
    if before is not None:
        await asyncio.wait([before])
        before.result()  # raises its error
    await handler()


def attach_agents(
    app: App,
    stage: str,
    sources: Mapping[str, tuple[str, AtLeastOnce]],
    handle: Callable[[Any], Awaitable[None]],
    *,
    are_idle: bool = False,
) -> Lanes[Hashable]:
    """Register an agent for each topic, and return the lanes that they share, which must be cancelled at the end.

    `sources` has each agent's topic and schema by the agent's name; the schema's `order` chooses a record's lane. With
    `are_idle`, records count as idle until `handle` marks them as being worked on.
    """
    crashes: set[asyncio.Task[None]] = set()

    def crash(_: Hashable, error: BaseException) -> None:
        log.error("lane_failed", stage=stage, agents=list(sources), error_type=type(error).__name__)
        crashes.add(asyncio.ensure_future(app.crash(error)))

    lanes = Lanes[Hashable](crash)  # the engine limits the records in flight per partition

    def agent_of(schema: AtLeastOnce) -> Callable[[AsyncIterable[Any]], Awaitable[None]]:
        async def agent(stream: AsyncIterable[Any]) -> None:
            async for event in stream.noack().events():  # type: ignore[attr-defined]
                if are_idle:
                    mark_idle(event)
                lanes.submit(schema.order(event.value), partial(run_in_batch, event, handle))

        return agent

    for name, (topic, schema) in sources.items():
        app.agent(app.topic(topic, schema=schema), name=name)(agent_of(schema))

    @app.on_partitions_revoked.connect  # type: ignore[untyped-decorator]
    async def cancel(*_: Any, **__: Any) -> None:
        # the engine has waited as long as it may; the next owner handles the rest
        await lanes.cancel()

    return lanes


def send(output: Output) -> None:
    """Send a record with the batch of the record that is being handled, so that both are committed together."""
    batch = current_batch()
    assert batch is not None  # noqa: S101 – every handler of an agent has one
    batch.send(output)
