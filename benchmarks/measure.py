"""Workers of one program on a topic that is full: how fast their committed offsets move, and what that costs."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError

from benchmarks.processes import cpu_seconds_of

POLL_SECONDS = 0.05
TIMEOUT_SECONDS = 180.0
STOP_SECONDS = 20.0
TAIL_CHARACTERS = 2000
"""Characters shown of the log of a program that ended."""


@dataclass(frozen=True)
class Worker:
    """A process: its command line, and its environment beside ours."""

    command: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Work:
    """Work to do, and the part of it that is timed."""

    bootstrap: str
    group: str
    topic: str
    total: int
    """Records that are committed at the end; the topic may have more."""
    after: int = 1
    """Those that are committed when the clock starts, or a few more: what comes before is warming up. Counted from when
    every worker has its partitions."""


@dataclass(frozen=True)
class Round:
    """Result of one run, between two commits that were seen."""

    records: int
    seconds: float
    cpu_seconds: float
    """CPU time of all the program's workers; the broker's is not in it."""

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds

    @property
    def cpu_microseconds(self) -> float:
        """CPU time of a record."""
        return self.cpu_seconds / self.records * 1e6


Sight = tuple[int, float, float]
"""Records committed, seconds on the clock, CPU seconds."""


async def measure(work: Work, workers: Sequence[Worker], log: Path) -> Round:
    """Runs the workers until they have committed `work.total`. Raises: TimeoutError, RuntimeError."""
    admin = AIOKafkaAdminClient(bootstrap_servers=work.bootstrap)
    await admin.start()
    try:
        with _running(workers, log) as children:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await _watch(children, admin, work, log)
    finally:
        await admin.close()


@contextmanager
def _running(workers: Sequence[Worker], log: Path) -> "Iterator[list[subprocess.Popen[bytes]]]":
    children = []
    try:
        with log.open("ab") as output:
            for worker in workers:
                environment = {**os.environ, **worker.environment}
                children.append(
                    subprocess.Popen(worker.command, env=environment, stdout=output, stderr=subprocess.STDOUT)
                )
        yield children
    finally:
        for child in children:
            child.send_signal(signal.SIGTERM)
        for child in children:
            _end(child)


async def _watch(
    children: "Sequence[subprocess.Popen[bytes]]", admin: AIOKafkaAdminClient, work: Work, log: Path
) -> Round:
    first: Sight | None = None
    settled: int | None = None
    while True:
        _check(children, work.group, log)
        done = await _committed(admin, work.group, work.topic)
        now = done, time.monotonic(), sum(cpu_seconds_of(_stat(child.pid)) for child in children)
        if settled is None and await _settled(admin, work.group, len(children)):
            settled = done
        if first is None and settled is not None and done >= settled + work.after:
            first = now
        if first and done >= work.total:
            return between(first, now, work)
        await asyncio.sleep(POLL_SECONDS)


def _check(children: "Sequence[subprocess.Popen[bytes]]", group: str, log: Path) -> None:
    if codes := [child.returncode for child in children if child.poll() is not None]:
        last = log.read_text(errors="replace")[-TAIL_CHARACTERS:]
        raise RuntimeError(f"{group}: the program ended with code {codes[0]}: {last}")


async def _settled(admin: AIOKafkaAdminClient, group: str, workers: int) -> bool:
    """Return whether every worker has its partitions: what they do before that, each alone, is starting."""
    if workers == 1:
        return True
    (answer,) = await admin.describe_consumer_groups([group])
    _, _, state, _, _, members, *_ = answer.groups[0]
    return bool(state == "Stable" and len(members) == workers)


def between(first: Sight, last: Sight, work: Work) -> Round:
    """Raises: RuntimeError when they are one commit: nothing can be said of a program that commits so seldom."""
    if last[0] == first[0]:
        raise RuntimeError(f"{work.group}: all {last[0]} records in one commit: more records are needed")
    return Round(last[0] - first[0], last[1] - first[1], last[2] - first[2])


async def _committed(admin: AIOKafkaAdminClient, group: str, topic: str) -> int:
    try:
        found = await admin.list_consumer_group_offsets(group)
    except GroupCoordinatorNotAvailableError:  # the cluster's first group: its topic is being made
        return 0
    return sum(max(0, position.offset) for source, position in found.items() if source.topic == topic)


def _stat(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text()


def _end(child: "subprocess.Popen[bytes]") -> None:
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
