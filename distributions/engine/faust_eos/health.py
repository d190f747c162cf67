"""Whether a worker lives, is ready and makes progress: two pages over HTTP, and a watchdog.

`/livez` answers as long as the event loop runs and depends on nothing else, because a worker must not be restarted when
its broker is down. `/readyz` answers 200 when every named condition holds, else 503 with the reasons.

The watchdog stops a worker that runs without progress, so that its supervisor starts it again. A worker must reach the
broker, be in its group, and advance each partition that has unread or uncommitted records. Each of these duties has a
mark that changes with progress. If a mark stays the same for too long, the worker has stalled.
"""

import asyncio
import time
from collections import ChainMap
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import structlog
from aiohttp import web
from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from faust_eos.errors import Stalled

log = structlog.get_logger(__name__)

STARTING = "starting"
SHUTDOWN_SECONDS = 1.0
BROKER = "the brokers do not answer"
GROUP = "the worker is not in its consumer group"
LOOKS = 12
"""Number of checks within the time limit."""
LONGEST_PAUSE_SECONDS = 5.0
LONGEST_ANSWER_SECONDS = 15.0

View = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Readiness:
    """Named conditions; the worker is ready when all of them hold.

    The conditions named at the start do not hold until `ready` is called for them.
    """

    def __init__(self, *conditions: str) -> None:
        self._reasons: dict[str, str | None] = dict.fromkeys(conditions, STARTING)
        self._parts: list[Readiness] = []

    def part(self) -> "Readiness":
        """Return further conditions, which count here too, for one of several apps' agents."""
        self._parts.append(Readiness())
        return self._parts[-1]

    def ready(self, condition: str) -> None:
        self._reasons[condition] = None

    def not_ready(self, condition: str, reason: str) -> None:
        """Mark the condition as not met.

        `reason` is a stable snake_case word, shown to anyone who can reach the port.
        """
        self._reasons[condition] = reason

    @property
    def reasons(self) -> dict[str, str]:
        """Reasons why the worker is not ready, by condition; empty if it is ready."""
        own = {condition: reason for condition, reason in self._reasons.items() if reason is not None}
        return dict(ChainMap(own, *(part.reasons for part in self._parts)))


class HealthServer:
    """Serves liveness, readiness and the worker's `views`, by path.

    `port` is the port in use, even if 0 was requested.
    """

    def __init__(self, readiness: Readiness, host: str, port: int, views: Mapping[str, View] | None = None) -> None:
        self.port = port
        self._host = host
        self._readiness = readiness
        app = web.Application()
        routes = {"/livez": self._livez, "/readyz": self._readyz, **(views or {})}
        app.add_routes([web.get(path, handler, allow_head=False) for path, handler in routes.items()])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)

    async def _livez(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "alive"})

    async def _readyz(self, _: web.Request) -> web.Response:
        reasons = self._readiness.reasons
        if not reasons:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "not_ready", "reasons": reasons}, status=503)

    async def __aenter__(self) -> Self:
        """Begin to serve. Raises: OSError if the address cannot be bound."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self.port).start()
        except OSError:
            await self._runner.cleanup()
            raise
        self.port = self._runner.addresses[0][1]
        log.info("health_server_started", host=self._host, port=self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


def stalls_before(file: Path) -> int:
    """Return how many stalls have ended this worker's processes, as counted by `remember_stall`; 0 if unknown."""
    with suppress(OSError, ValueError):
        return max(0, int(file.read_text()))
    return 0


def remember_stall(file: Path) -> None:
    """Count one more stall in the file for the worker's next process: the metrics of this one may never be read again.

    Raises: OSError.
    """
    file.write_text(str(stalls_before(file) + 1))


class Mark(NamedTuple):
    """Progress of one duty. `handling` means that the agent has the work, which may take longer or wait."""

    value: object = None
    handling: bool = False


class Watch:
    """Decides what has stalled; the caller passes the time in.

    A gap between two checks counts as at most `longest_gap_seconds`: in a longer gap the whole process was suspended or
    starved, and could not have made progress.
    """

    def __init__(self, limit_seconds: float, handling_seconds: float, longest_gap_seconds: float) -> None:
        self._limits = (limit_seconds, limit_seconds + handling_seconds)
        self._longest_gap = longest_gap_seconds
        self._looked: float | None = None
        self._unchanged: dict[str, tuple[Mark, float]] = {}

    def look(self, to_do: Mapping[str, Mark], now: float) -> str | None:
        """Return a duty that made no progress for too long, if any. `now` is in seconds of a monotonic clock."""
        gap = 0.0 if self._looked is None else min(now - self._looked, self._longest_gap)
        self._looked = now
        before, self._unchanged = self._unchanged, {}
        for what, mark in to_do.items():
            known, seconds = before.get(what, (None, 0.0))
            self._unchanged[what] = mark, seconds + gap if mark == known else 0.0
        late = (what for what, (mark, seconds) in self._unchanged.items() if seconds >= self._limits[mark.handling])
        return next(late, None)


class Watchdog:
    """Checks a worker at intervals.

    `waits` returns whether the agent is waiting for a dependency, which it reports itself.
    """

    def __init__(self, app: Any, waits: Callable[[], bool]) -> None:
        limit = app.engine.watchdog_seconds
        self._app = app
        self._waits = waits
        self._limit = limit
        self._pause = min(limit / LOOKS, LONGEST_PAUSE_SECONDS)
        self._answer = min(limit / 2, LONGEST_ANSWER_SECONDS)
        self._watch = Watch(limit, app.engine.handling_seconds, 2 * (self._pause + self._answer))
        self._ends: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        """Run until something has stalled. Raises: Stalled."""
        while True:
            await asyncio.sleep(self._pause)
            stalled = self._watch.look(await self._to_do(), time.monotonic())
            if stalled is not None:
                errors = {partition.last_error for partition in self._app.consumer.partitions.values()} - {""}
                because = f" (last error: {', '.join(sorted(errors))})" if errors else ""
                raise Stalled(what=stalled + because, seconds=self._limit)

    async def _to_do(self) -> dict[str, Mark]:
        consumer = self._app.consumer
        partitions = dict(consumer.partitions)
        marks: dict[str, Mark] = {}
        try:
            async with asyncio.timeout(self._answer):
                self._ends |= await consumer.ends(partitions)
        except (KafkaError, OSError, TimeoutError):
            marks[BROKER] = Mark()
        if not consumer.in_group.is_set():
            marks[GROUP] = Mark()
        for source, partition in partitions.items():
            # a partition that is being released has nothing to do
            with suppress(IllegalStateError, TimeoutError):
                async with asyncio.timeout(self._answer):
                    marks |= await partition.to_do(self._ends.get(source, 0))
        waits = self._waits()
        return {what: mark for what, mark in marks.items() if not (mark.handling and waits)}
