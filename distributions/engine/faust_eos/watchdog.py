"""Stops a worker that runs without progress, so that its supervisor starts it again.

A worker must reach the broker, be in its group, and advance each partition that has unread or uncommitted records. Each
of these duties has a mark that changes with progress. If a mark stays the same for too long, the worker has stalled.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from faust_eos.errors import Stalled

log = structlog.get_logger()

BROKER = "the brokers do not answer"
GROUP = "the worker is not in its consumer group"
LOOKS = 12
"""Number of checks within the time limit."""
LONGEST_PAUSE_SECONDS = 5.0
LONGEST_ANSWER_SECONDS = 15.0


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
    """Progress of one duty. `handling` means that the agent has the work, and may take longer or wait for something."""

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
        found: dict[str, Mark] = {}
        try:
            async with asyncio.timeout(self._answer):
                self._ends |= await consumer.ends(partitions)
        except (KafkaError, OSError, TimeoutError):
            found[BROKER] = Mark()
        if not consumer.joined:
            found[GROUP] = Mark()
        for source, partition in partitions.items():
            # a partition that is being released has nothing to do
            with suppress(IllegalStateError, TimeoutError):
                async with asyncio.timeout(self._answer):
                    found |= await partition.to_do(self._ends.get(source, 0))
        waits = self._waits()
        return {what: mark for what, mark in found.items() if not (mark.handling and waits)}
