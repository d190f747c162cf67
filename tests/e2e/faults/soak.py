"""A steady load for a long time, while workers are killed, join and leave: curves of what it takes, and which rise.

The first worker of each role lives from the start to the end: its curves tell of leaks. The others come and go.
Messages are edited and deleted as in the long form of the faults; the LLM is a stand-in. Once a second a probe, two
messages and a flush, is sent; its latency is from the flush to its `summary.created`.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import orjson
import structlog
from aiokafka import AIOKafkaConsumer

from afterword.dev import ROLES
from afterword.embedded.process import Process, Server
from benchmarks.processes import status_bytes
from benchmarks.quantiles import quantile
from benchmarks.suite import machine
from tests.e2e.faults.curves import Bound, Curves, Panel, rows, svg, table, verdict_of
from tests.e2e.faults.fault import Fault
from tests.e2e.faults.run import Form, Result, note, run
from tests.e2e.faults.stalls import Group, Stalls, measured
from tests.e2e.faults.world import OVER_HTTP, World, serving

BROKERS, PARTITIONS = 3, 32
WORKERS = {"segmenter": 2, "summarizer": 2, "archiver": 1}
SHARE = 0.6
"""Share of the capacity that is the load, where no rate is given."""
CALIBRATION_SECONDS, CALIBRATION_RATE = 30.0, 400.0
"""Time for which more is sent than can be done, and records a second meanwhile."""
SAMPLES, LONGEST_SAMPLE_SECONDS = 60, 10.0
"""Least number of samples, and the longest time between two."""
PROBE_SECONDS = 1.0
WINDOW_SECONDS = 60.0
"""Latencies of a sample are those of as long a time before it."""
SETTLED_LAG, SETTLING_SECONDS = 200, 300.0
END_SECONDS = 2400.0
"""Time for starting, settling and auditing, beside that of the injections."""
MEGABYTE = 1_000_000

STEADY = frozenset(ROLES)
"""Names of the workers that live from the start to the end."""
PANELS = (
    Panel("lag", "records", Bound(0.5, 100)),
    Panel("latency, flush to summary.created", "ms", Bound(0.5, 100)),
    Panel("memory of workers (RSS)", "MB", Bound(0.1, 20), STEADY),
    Panel("memory of servers (RSS)", "MB", Bound(0.2, 100)),
    Panel("open files of workers", "files", Bound(0.1, 10), STEADY),
    Panel("open files of servers", "files", Bound(0.1, 50)),
    Panel("RocksDB (SST files)", "MB", None, STEADY),
    Panel("state directories", "MB", None, STEADY),
    Panel("disk of servers", "MB", None),
)
LAG, LATENCY, MEMORY, SERVERS_MEMORY, FILES, SERVERS_FILES, ROCKSDB, STATE, DISK = (panel.title for panel in PANELS)


class ComingAndGoing(Fault):
    """Any worker but the first of its role is killed, leaves, or joins: at most one more than at the start, or less."""

    name = "kill, join, leave, at random"
    outcome = "flat curves, audit clean"
    brokers = BROKERS
    settings: ClassVar = {
        **OVER_HTTP,
        "kafka": {"partitions": PARTITIONS, "replication_factor": 3, "min_insync_replicas": 2},
    }
    pause_seconds = (10.0, 30.0)

    async def inject(self, world: World, chance: random.Random) -> None:
        """Raises: ProcessExited when a server has ended, which ends the run."""
        for server in servers_of(world).values():
            server.check()
        role = chance.choice(ROLES)
        others = [name for name in world.running(role) if name != role]
        wanted = world.workers.get(role, 1)
        can = {
            "join": len(others) <= wanted - 1,
            "leave": len(others) > 0 and len(others) >= wanted - 1,
            "kill": len(others) > 0,
        }
        what = chance.choice([name for name, possible in can.items() if possible])
        if what == "join":
            name = next(one for n in range(2, wanted + 2) if (one := f"{role}-{n}") not in others)
            world.start(role, name)
        elif what == "kill":
            name = chance.choice(others)
            world.crash(name)
        else:
            name = chance.choice(others)
            await world.stop(name)
        note(world, f"{name}: {what}")
        self.notes.append(f"{name}: {what}")

    async def check(self, world: World) -> None:
        """Nothing but the audit."""
        counts = {what: sum(line.endswith(what) for line in self.notes) for what in ("kill", "join", "leave")}
        self.notes[:] = [", ".join(f"{count} times {what}" for what, count in counts.items())]


class OftenComingAndGoing(ComingAndGoing):
    """The short form's."""

    brokers = 1
    settings: ClassVar = {**OVER_HTTP, "kafka": {"partitions": PARTITIONS}}
    pause_seconds = (2.0, 4.0)


@dataclass
class Soak:
    """Measures while it is entered, until the run ends. `rate`: records a second; None: a share of the capacity."""

    seconds: float
    rate: float | None
    curves: Curves = field(default_factory=Curves)
    capacity: float | None = None
    """Records a second."""
    _sent: dict[str, float] = field(default_factory=dict)
    """Seconds of the monotonic clock at the flush, by conversation, of probes under way."""
    _took: deque[tuple[float, float]] = field(default_factory=deque)
    """Moment of arrival and seconds of the latest probes."""
    _summarised: int = 0
    """Messages of first revisions that arrived."""

    @contextlib.asynccontextmanager
    async def measuring(self, world: World) -> AsyncIterator[None]:
        for name in list(world.deployment.workers):
            await world.ready(name)
        kafka = world.deployment.settings.kafka
        servers = kafka.bootstrap_servers
        followed = {
            "segmenter": Group(servers, kafka.segmenter_id, kafka.messages_topic, kafka.partitions),
            "archiver": Group(servers, kafka.archiver_id, kafka.messages_topic, kafka.partitions),
            "summarizer": Group(servers, kafka.summarizer_id, kafka.episodes_topic, kafka.partitions),
        }
        async with contextlib.AsyncExitStack() as entered:
            lags = {role: await entered.enter_async_context(measured(group)) for role, group in followed.items()}
            summaries = await entered.enter_async_context(
                AIOKafkaConsumer(kafka.summaries_topic, bootstrap_servers=servers, isolation_level="read_committed")
            )
            tasks = [asyncio.create_task(self._listen(summaries))]
            try:
                if self.rate is None:
                    await self._calibrate(world, lags)
                note(world, f"{world.load.per_second:.1f} records a second")
                tasks.append(asyncio.create_task(self._probe(world)))
                tasks.append(asyncio.create_task(self._sample(world, lags)))
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    task.result()

    async def _calibrate(self, world: World, lags: Mapping[str, Stalls]) -> None:
        """Send more than can be done, and count what is done in the last two thirds of the time."""
        world.load.per_second = CALIBRATION_RATE
        await asyncio.sleep(CALIBRATION_SECONDS / 3)
        began, before = time.monotonic(), self._summarised
        await asyncio.sleep(CALIBRATION_SECONDS * 2 / 3)
        self.capacity = (self._summarised - before) / (time.monotonic() - began)
        world.load.per_second = max(1.0, SHARE * self.capacity)
        async with asyncio.timeout(SETTLING_SECONDS):
            while sum(stalls.lag for stalls in lags.values()) > SETTLED_LAG:  # noqa: ASYNC110 – offsets set no event
                await asyncio.sleep(1)

    async def _listen(self, summaries: AIOKafkaConsumer) -> None:
        async for record in summaries:
            event = orjson.loads(record.value)
            if event["revision"] == 1:
                self._summarised += len(event["message_ids"])
            began = self._sent.pop(event["conversation_id"], None)
            if began is not None:
                now = time.monotonic()
                self._took.append((now, now - began))

    async def _probe(self, world: World) -> None:
        number = 0
        while True:
            name, number = f"probe-{number}", number + 1
            for value in probe_messages(name):
                await world.load.put(name, value)
            self._sent[name] = time.monotonic()
            await world.load.put(name, orjson.dumps({"type": "conversation.flush", "conversation_id": name}))
            await asyncio.sleep(PROBE_SECONDS)

    async def _sample(self, world: World, lags: Mapping[str, Stalls]) -> None:
        began, pause = time.monotonic(), min(LONGEST_SAMPLE_SECONDS, self.seconds / SAMPLES)
        while True:
            now = time.monotonic()
            sample = await asyncio.to_thread(resources, world)
            sample[LAG] = {role: float(stalls.lag) for role, stalls in lags.items()}
            if latencies := self._latencies(now):
                sample[LATENCY] = {f"p{share * 100:.0f}": quantile(latencies, share) * 1000 for share in (0.5, 0.99)}
            self.curves.add(now - began, sample)
            await asyncio.sleep(pause)

    def _latencies(self, now: float) -> list[float]:
        while self._took and self._took[0][0] < now - WINDOW_SECONDS:
            self._took.popleft()
        return [seconds for _, seconds in self._took]


def probe_messages(name: str) -> Iterator[bytes]:
    for number, role in enumerate(("user", "assistant")):
        yield orjson.dumps(
            {
                "id": f"m{number}",
                "conversation_id": name,
                "user_id": f"user of {name}",
                "role": role,
                "content": "Is the flight to Rome still on Monday?",
                "sent_at": "2026-01-01T00:00:00Z",
            }
        )


def servers_of(world: World) -> dict[str, Process]:
    """Processes of the servers, by name."""
    stack, index = world.servers.stack, world.servers.index
    found = {f"kafka-{number}": broker.process for number, broker in enumerate(stack.kafka.brokers, 1)}
    found["mongo"] = stack.mongo.process
    return found | ({"qdrant": index.process} if isinstance(index, Server) else {})


def resources(world: World) -> dict[str, dict[str, float]]:
    """One sample of what /proc and the file system say; blocks."""
    sample: dict[str, dict[str, float]] = {}
    workers, servers = dict(world.deployment.workers), servers_of(world)
    for processes, memory, files in ((workers, MEMORY, FILES), (servers, SERVERS_MEMORY, SERVERS_FILES)):
        for name, process in processes.items():
            with contextlib.suppress(OSError, StopIteration):  # it has just ended
                directory = Path(f"/proc/{process.pid}")
                resident = status_bytes((directory / "status").read_text(), "VmRSS") / MEGABYTE
                opened = float(sum(1 for _ in (directory / "fd").iterdir()))
                sample.setdefault(memory, {})[name] = resident
                sample.setdefault(files, {})[name] = opened
    states = {name: world.deployment.state(name) for name in workers if world.roles[name] == "segmenter"}
    sample[STATE] = {name: megabytes(path) for name, path in states.items()}
    sample[ROCKSDB] = {name: megabytes(path, "*.sst") for name, path in states.items()}
    stack = world.servers.stack.directory
    sample[DISK] = {name: megabytes(stack / name) for name in ("kafka", "mongo", "qdrant") if (stack / name).exists()}
    return sample


def megabytes(directory: Path, pattern: str = "*") -> float:
    total = 0
    for path in directory.rglob(pattern):
        with contextlib.suppress(OSError):  # it has just been removed
            stat = path.stat()
            total += min(stat.st_size, stat.st_blocks * 512)  # index files of Kafka are mostly holes
    return total / MEGABYTE


@dataclass(frozen=True)
class Options:
    seconds: float
    seed: int
    rate: float | None
    workers: Mapping[str, int]
    short: bool = False


async def soaked(directory: Path, options: Options, soak: Soak) -> Result:
    """Raises: TimeoutError when it does not come to an end."""
    kind = OftenComingAndGoing if options.short else ComingAndGoing
    place = directory / "soak"
    place.mkdir()
    form = Form(options.seed, options.rate or 1.0, options.seconds, workers=options.workers, redone=False)
    async with asyncio.timeout(options.seconds + END_SECONDS), serving(directory / "stack", kind.brokers) as servers:
        return await run(servers, place, [kind], form, soak.measuring)


def told(options: Options, soak: Soak) -> str:
    """What was run, in a line."""
    workers = ", ".join(f"{count} × {role}" for role, count in options.workers.items())
    minutes = soak.curves.seconds[-1] / 60 if soak.curves.seconds else 0
    return f"{minutes:.0f} minutes, seed {options.seed}, {workers}, {PARTITIONS} partitions"


def kept(options: Options, soak: Soak, result: Result | None) -> dict[str, Any]:
    """Everything for the JSON file."""
    return {
        "machine": machine(),
        "options": vars(options),
        "capacity": soak.capacity,
        "result": result
        and {
            "clean": result.clean,
            "messages": result.messages,
            "episodes": result.episodes,
            "lost": result.lost,
            "duplicated": result.duplicated,
            "problems": result.problems,
            "notes": result.notes,
        },
        "slopes": [
            {
                "panel": row.panel.title,
                "curve": row.name,
                "leaks": row.leaks,
                **(row.slope._asdict() if row.slope else {}),
            }
            for row in rows(soak.curves, PANELS)
        ],
        "seconds": soak.curves.seconds,
        "curves": soak.curves.values,
    }


def report(result: Result, soak: Soak) -> list[str]:
    judged = f"{result.lost} lost, {result.duplicated} duplicated"
    counts = f"{result.messages:,} messages, {result.episodes:,} episodes, {judged}"
    verdict = verdict_of(rows(soak.curves, PANELS), LAG)
    audited = "audit clean" if result.clean else "NOT CLEAN"
    return [*table(rows(soak.curves, PANELS)), "", counts, *result.notes, *result.problems, f"{audited}, {verdict}"]


def write(given: argparse.Namespace, options: Options, soak: Soak, result: Result | None) -> None:
    """Write what was measured, also of a run that was cut off."""
    for path in (given.json, given.svg):
        path.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(kept(options, soak, result), indent=1, ensure_ascii=False) + "\n")
    if soak.curves.seconds:
        given.svg.write_text(svg(soak.curves, PANELS, told(options, soak)))


def main() -> None:
    given = arguments()
    directory = Path(tempfile.mkdtemp(prefix="soak-"))
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    workers = {role: getattr(given, f"{role}s") for role in ROLES}
    options = Options(60 * given.minutes, given.seed, given.rate, workers, given.short)
    soak, result = Soak(options.seconds, options.rate), None
    tell(f"seed {given.seed}, {given.minutes:g} minutes, logs in {directory}")
    try:
        result = asyncio.run(soaked(directory, options, soak))
    finally:
        write(given, options, soak, result)
    if soak.capacity:
        tell(f"capacity {soak.capacity:.0f} messages/s")
    tell("\n".join(report(result, soak)))
    if not result.clean or any(row.leaks for row in rows(soak.curves, PANELS)):
        tell(f"logs in {directory}")
        sys.exit(1)
    shutil.rmtree(directory)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="of injections; start and audit are extra")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--rate", type=float, help=f"records a second; else {SHARE * 100:.0f} %% of the capacity that is measured"
    )
    for role in ROLES:
        count = WORKERS.get(role, 1)
        parser.add_argument(f"--{role}s", type=int, default=count, help=f"at the start; {count}")
    parser.add_argument("--short", action="store_true", help="one broker, and changes of workers every few seconds")
    parser.add_argument("--json", type=Path, default=Path("build/soak.json"))
    parser.add_argument("--svg", type=Path, default=Path("build/soak.svg"))
    return parser.parse_args()


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
