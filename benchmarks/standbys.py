"""A segmenter is killed, and its disk is lost: how long its partitions wait at another one, with a standby and without.

Two segmenters share four partitions, and their conversations are open already. The elder is killed, and a new one with
an empty disk joins, again and again. The pause of a partition is the time from the kill to the first commit of the next
owner, beyond the session timeout: the broker waits that long before anybody is told.
"""

import asyncio
import json
import os
import signal
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from afterword.embedded import EmbeddedStack
from benchmarks.deployment import Deployment, environment
from benchmarks.open_conversations import fill
from benchmarks.probing import VALUES, Probe, probing
from benchmarks.processes import Worker, worker
from benchmarks.quantiles import milliseconds
from benchmarks.suite import Finding, Form, Line

PARTITIONS = 4
SHARE = PARTITIONS // 2
OPEN, FEW = 200_000, 4_000
"""Open conversations in all partitions together: each is three records of the changelogs."""
WITH_STANDBY, REPLACED, WITHOUT = "one standby", "the same, replaced at once", "none, disk lost"
KILLS = {1: {WITH_STANDBY: 2, REPLACED: 2}, 0: {WITHOUT: 1}}
"""By standbys. Without one the replay is what takes long, every time."""
INTERVAL_SECONDS = 0.1
LOOK_SECONDS = 0.05
WAIT_SECONDS = 120.0
AIM_SECONDS = 1.0

LogLine = Mapping[str, Any]


@dataclass(frozen=True)
class Pause:
    """Wait of one partition; its phases in seconds, one after the other."""

    records: int
    """Records of the changelogs that were replayed."""
    assigned: float
    """Time from the end of the session until the next owner is told; the broker counts from the last heartbeat, so that
    it may be less than nothing."""
    opening: float
    """Time to fence the last owner, and to begin the replay."""
    replay: float
    commit: float
    """Time to the first commit that could be read."""

    @property
    def own(self) -> float:
        """Time from the assignment on."""
        return self.opening + self.replay + self.commit

    @property
    def beyond(self) -> float:
        return self.assigned + self.own


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    conversations = FEW if form.short else OPEN
    async with EmbeddedStack(directory / "stack") as stack:
        found: dict[str, list[Pause]] = {}
        for standbys, kills in KILLS.items():
            values = {**VALUES, "engine": {"standbys": standbys}}
            deployed = Deployment(stack, directory, f"standbys-{standbys}", PARTITIONS, values)
            await deployed.make_topics()
            await fill(deployed, conversations)
            found |= await pauses(deployed, dict.fromkeys(kills, 1) if form.short else kills)
    return [finding(conversations, found)]


async def pauses(deployed: Deployment, kills: Mapping[str, int]) -> dict[str, list[Pause]]:
    """Pauses of each kind. Replaced at once: the new worker starts when the elder is killed, else when that is over."""
    found: dict[str, list[Pause]] = {kind: [] for kind in kills}
    async with AsyncExitStack() as closing:

        async def joined(number: int) -> Worker:
            return await closing.enter_async_context(segmenter(deployed, f"worker-{number}"))

        elder = await joined(0)
        await until(lambda: len(told(elder, "recovered")) == PARTITIONS)
        younger = await joined(1)
        async with probing(deployed, INTERVAL_SECONDS) as probe:
            plan = [kind for kind, times in kills.items() for _ in range(times)]
            for number, kind in enumerate(plan, 2):
                await settled(deployed, elder, younger, probe)
                kill = Kill(deployed, elder, younger)
                third = await joined(number) if kind == REPLACED else None
                found[kind] += await kill.pauses([younger, third] if third else [younger], probe)
                elder, younger = younger, third or await joined(number)
                await until(lambda: share(younger) == SHARE)  # noqa: B023 – it is over in this turn
    return found


def segmenter(deployed: Deployment, name: str) -> Any:
    """A context with one more, with a disk of its own."""
    directory = deployed.directory / deployed.name / name
    return worker("segmenter", directory, environment({**deployed.all_values, "state_dir": directory}))


async def settled(deployed: Deployment, elder: Worker, younger: Worker, probe: Probe) -> None:
    """Wait until both have their share, the younger one has its standbys, and all partitions are at work."""
    standbys = deployed.settings.engine.standbys * SHARE
    await until(lambda: share(elder) == share(younger) == len(told(younger, "recovered")) == SHARE)
    await until(lambda: len(partitions(younger, "standby_caught_up") - partitions(younger, "recovered")) >= standbys)
    began = time.monotonic()
    await until(lambda: len(probe.first_end(began)) == PARTITIONS)


class Kill:
    """The end of the elder of two workers, and what becomes of its partitions."""

    def __init__(self, deployed: Deployment, elder: Worker, younger: Worker) -> None:
        self._session_seconds = deployed.settings.kafka.session_timeout_seconds
        self._orphans = set(range(PARTITIONS)) - partitions(younger, "recovered")
        self._began, self._wall = time.monotonic(), time.time()
        os.killpg(elder.process.pid, signal.SIGKILL)

    async def pauses(self, heirs: Sequence[Worker], probe: Probe) -> list[Pause]:
        await until(lambda: self._orphans <= probe.first_end(self._began).keys())
        ends = probe.first_end(self._began)
        return [self._pause(number, heirs, self._wall + ends[number] - self._began) for number in self._orphans]

    def _pause(self, number: int, heirs: Sequence[Worker], committed: float) -> Pause:
        """Pause of one of the partitions, by the log of who opened it first."""
        opened = [(line, heir) for heir in heirs for line in told(heir, "recovered") if number_of(line) == number]
        line, heir = min((one for one in opened if moment(one[0]) > self._wall), key=lambda one: moment(one[0]))
        *_, rebalance = [one for one in told(heir, "rebalanced") if moment(one) < moment(line)]
        return pause(self._wall + self._session_seconds, rebalance, line, committed)


def pause(session_end: float, rebalance: LogLine, recovered: LogLine, committed: float) -> Pause:
    """Phases of a partition by the log of its next owner. Moments in seconds since 1970."""
    assigned, done = moment(rebalance), moment(recovered)
    return Pause(
        recovered["records"],
        assigned=assigned - session_end,
        opening=done - recovered["seconds"] - assigned,
        replay=recovered["seconds"],
        commit=committed - done,
    )


def told(worker: Worker, event: str) -> list[LogLine]:
    """Lines of its log that tell of that event."""
    lines = [line for line in worker.process.log.read_text().splitlines() if f'"{event}"' in line]
    return [found for line in lines if (found := json.loads(line))["event"] == event]


def moment(line: LogLine) -> float:
    """Seconds since 1970."""
    return datetime.fromisoformat(line["timestamp"]).timestamp()


def number_of(line: LogLine) -> int:
    """Number of the partition that it is about."""
    return int(line["partition"].rpartition("-")[2])


def partitions(worker: Worker, event: str) -> set[int]:
    """Partitions that its log tells that of."""
    return {number_of(line) for line in told(worker, event)}


def share(worker: Worker) -> int:
    """Number of partitions that it has since the last rebalance."""
    rebalances = told(worker, "rebalanced")
    return int(rebalances[-1]["kept"] + rebalances[-1]["opened"]) if rebalances else 0


async def until(condition: Callable[[], bool]) -> None:
    """Raises: TimeoutError."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110 – logs set no event
            await asyncio.sleep(LOOK_SECONDS)


def finding(conversations: int, found: Mapping[str, Sequence[Pause]]) -> Finding:
    title = f"standbys: a segmenter is killed, {PARTITIONS} partitions, {conversations:,} open conversations"
    notes = [
        "From the end of the session timeout, counted from the kill: p50 and longest pause of a partition of the dead",
        "worker, and the medians of its phases. assigned: the news of the death and the rebalance; the broker counts",
        "from the last heartbeat, so it may come before that. opening: fence the last owner. commit: the first one",
        "that was read. replaced at once: the new worker joins before the session ends. ratio: since assigned.",
    ]
    return Finding(title, [line(kind, pauses, found[WITH_STANDBY]) for kind, pauses in found.items()], notes)


def line(kind: str, pauses: Sequence[Pause], ours: Sequence[Pause]) -> Line:
    if kind == WITHOUT:
        return Line(kind, figures(pauses), median(pauses, "own") / median(ours, "own"))
    longest = max(pause.beyond for pause in pauses)
    return Line(kind, figures(pauses), None, f"≤ {AIM_SECONDS:g} s, longest", longest <= AIM_SECONDS)


def figures(pauses: Sequence[Pause]) -> dict[str, str]:
    phases = ("assigned", "opening", "replay", "commit")
    return {
        "partitions": str(len(pauses)),
        "records replayed": f"{max(pause.records for pause in pauses):,}",
        **{phase: milliseconds(median(pauses, phase)) for phase in phases},
        "since assigned": milliseconds(median(pauses, "own")),
        "p50": milliseconds(median(pauses, "beyond")),
        "longest": milliseconds(max(pause.beyond for pause in pauses)),
    }


def median(pauses: Sequence[Pause], figure: str) -> float:
    return float(statistics.median(getattr(pause, figure) for pause in pauses))
