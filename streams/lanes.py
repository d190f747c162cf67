"""Lanes: concurrent work for many keys, in strict order within each key."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import structlog

from afterword.streams.errors import LaneStopped
from faust_eos.app import App
from faust_eos.at_least_once import AtLeastOnce, mark_idle, run_in_batch
from faust_eos.batch import current_batch
from faust_eos.transaction import Output

K = TypeVar("K", bound=Hashable)
Job = Callable[[], Awaitable[None]]
Lane = deque[Job]

log = structlog.get_logger()


class Lanes(Generic[K]):
    """Runs a queue and a task per key; both end when the queue is empty. The caller limits the work in flight.

    A handler that raises stops its lane: the rest of its queue is dropped, and `submit` refuses the key until `cancel`
    resets it. `on_error` is called at once and must not raise.
    """

    def __init__(self, on_error: Callable[[K, BaseException], None]) -> None:
        self._on_error = on_error
        self._lanes: dict[K, Lane] = {}
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._stopped: set[K] = set()

    @property
    def in_flight(self) -> int:
        """Number of handlers that are running or queued."""
        return sum(map(len, self._lanes.values()))

    @property
    def running(self) -> int:
        """Number of handlers that are running: one for each key."""
        return len(self._lanes)

    def submit(self, key: K, handler: Job) -> None:
        """Queue a handler behind the earlier ones of its key. Raises: LaneStopped if one of them raised."""
        if key in self._stopped:
            raise LaneStopped(key=key)
        if key in self._lanes:
            self._lanes[key].append(handler)
            return
        lane = self._lanes[key] = deque([handler])
        task = self._tasks[key] = asyncio.create_task(self._run(key, lane))
        task.add_done_callback(partial(self._report, key, lane))

    async def cancel(self) -> None:
        """Cancel all lanes, and return once no handler is running."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._stopped.clear()

    async def _run(self, key: K, lane: Lane) -> None:
        try:
            while lane:
                await lane[0]()
                lane.popleft()
        finally:
            self._end(key, lane)

    def _end(self, key: K, lane: Lane) -> None:
        # nothing was awaited since the lane was found empty, so nothing can have been queued
        if self._lanes.get(key) is lane:
            if lane:
                self._stopped.add(key)
            del self._lanes[key], self._tasks[key]

    def _report(self, key: K, lane: Lane, ended: asyncio.Task[None]) -> None:
        self._end(key, lane)  # a task cancelled before its first step never runs its own `finally`
        if ended.cancelled():
            if not ended.cancelling():  # the handler raised this itself, as a closed client may do
                self._on_error(key, asyncio.CancelledError())
        elif error := ended.exception():
            self._on_error(key, error)


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
