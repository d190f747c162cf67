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
KILLS = {0: 1, 1: 4}
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
    noticed: float
    """Time from the end of the session to the news of it at the next owner; the broker counts from the last heartbeat,
    so that it may be less than nothing."""
    rebalance: float
    opening: float
    """Time to fence the last owner, and to begin the replay."""
    replay: float
    commit: float
    """Time to the first commit that could be read."""

    @property
    def own(self) -> float:
        """Time from the news on."""
        return self.rebalance + self.opening + self.replay + self.commit

    @property
    def beyond(self) -> float:
        return self.noticed + self.own


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    conversations = FEW if form.short else OPEN
    async with EmbeddedStack(directory / "stack") as stack:
        found = {}
        for standbys, kills in KILLS.items():
            values = {**VALUES, "engine": {"standbys": standbys}}
            deployed = Deployment(stack, directory, f"standbys-{standbys}", PARTITIONS, values)
            await deployed.make_topics()
            await fill(deployed, conversations)
            found[standbys] = await pauses(deployed, standbys, 1 if form.short else kills)
    return [finding(conversations, found[1], found[0])]


async def pauses(deployed: Deployment, standbys: int, kills: int) -> list[Pause]:
    found = []
    async with AsyncExitStack() as closing:
        elder = await closing.enter_async_context(segmenter(deployed, "worker-0"))
        await until(lambda: len(told(elder, "recovered")) == PARTITIONS)
        async with probing(deployed, INTERVAL_SECONDS) as probe:
            for number in range(kills):
                younger = await closing.enter_async_context(segmenter(deployed, f"worker-{number + 1}"))
                await until(lambda: share(elder) == share(younger) == SHARE)  # noqa: B023 – it is over in this turn
                await until(lambda: len(told(younger, "recovered")) == SHARE)  # noqa: B023 – see above
                await until(lambda: len(told(younger, "standby_caught_up")) >= standbys * SHARE)  # noqa: B023 – see above
                began = time.monotonic()
                await until(lambda: len(probe.first_end(began)) == PARTITIONS)  # noqa: B023 – see above
                found += await killed(deployed, elder, younger, probe)
                elder = younger
    return found


def segmenter(deployed: Deployment, name: str) -> Any:
    """A context with one more, with a disk of its own."""
    directory = deployed.directory / deployed.name / name
    return worker("segmenter", directory, environment({**deployed.all_values, "state_dir": directory}))


async def killed(deployed: Deployment, elder: Worker, younger: Worker, probe: Probe) -> list[Pause]:
    """Kill the elder; return the pauses of its partitions."""
    session_seconds = deployed.settings.kafka.session_timeout_seconds
    began, wall = time.monotonic(), time.time()
    os.killpg(elder.process.pid, signal.SIGKILL)

    def recovered() -> list[LogLine]:
        return [line for line in told(younger, "recovered") if moment(line) > wall]

    await until(lambda: len(recovered()) >= SHARE)
    await until(lambda: {number_of(line) for line in recovered()} <= probe.first_end(began).keys())
    rebalance = next(line for line in told(younger, "rebalanced") if moment(line) > wall)
    ends = {number: wall + end - began for number, end in probe.first_end(began).items()}
    return [pause(wall + session_seconds, rebalance, line, ends[number_of(line)]) for line in recovered()]


def pause(session_end: float, rebalance: LogLine, recovered: LogLine, committed: float) -> Pause:
    """Phases of a partition by the log of its next owner. Moments in seconds since 1970."""
    shared_out = moment(rebalance)
    began = shared_out - rebalance["seconds"]
    done = moment(recovered)
    return Pause(
        recovered["records"],
        noticed=began - session_end,
        rebalance=rebalance["seconds"],
        opening=done - recovered["seconds"] - shared_out,
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


def share(worker: Worker) -> int:
    """Number of partitions that it has since the last rebalance."""
    rebalances = told(worker, "rebalanced")
    return int(rebalances[-1]["kept"] + rebalances[-1]["opened"]) if rebalances else 0


async def until(condition: Callable[[], bool]) -> None:
    """Raises: TimeoutError."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110 – logs set no event
            await asyncio.sleep(LOOK_SECONDS)


def finding(conversations: int, ours: Sequence[Pause], without: Sequence[Pause]) -> Finding:
    title = f"standbys: a segmenter is killed, {PARTITIONS} partitions, {conversations:,} open conversations"
    gain = median(without, "own") / median(ours, "own")
    longest = max(pause.beyond for pause in ours)
    lines = [
        Line("one standby", figures(ours), None, f"≤ {AIM_SECONDS:g} s, longest", longest <= AIM_SECONDS),
        Line("none, disk lost", figures(without), gain),
    ]
    notes = [
        "From the end of the session timeout, counted from the kill: p50 and longest pause of a partition of the dead",
        "worker, and the medians of its phases. noticed: the news of the rebalance; the broker counts from the last",
        "heartbeat, so it may come before that. opening: fence the last owner. commit: the first one that was read.",
        "ratio: of the time since it was noticed.",
    ]
    return Finding(title, lines, notes)


def figures(pauses: Sequence[Pause]) -> dict[str, str]:
    phases = ("noticed", "rebalance", "opening", "replay", "commit")
    return {
        "partitions": str(len(pauses)),
        "records replayed": f"{max(pause.records for pause in pauses):,}",
        **{phase: milliseconds(median(pauses, phase)) for phase in phases},
        "since noticed": milliseconds(median(pauses, "own")),
        "p50": milliseconds(median(pauses, "beyond")),
        "longest": milliseconds(max(pause.beyond for pause in pauses)),
    }


def median(pauses: Sequence[Pause], figure: str) -> float:
    return float(statistics.median(getattr(pause, figure) for pause in pauses))
