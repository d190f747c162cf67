"""One program on a full topic: how fast its committed offsets move, and what it costs."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError

POLL_SECONDS = 0.05
TIMEOUT_SECONDS = 180.0
STOP_SECONDS = 20.0
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Round:
    """What one run showed; `seconds` from the first commit that was seen to the last."""

    records: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds

    @property
    def cpu_microseconds(self) -> float:
        """For each record."""
        return self.cpu_seconds / self.records * 1e6


async def measure(
    program: str, environment: Mapping[str, str], log: Path, *, bootstrap: str, group: str, topic: str, total: int
) -> Round:
    """Runs the program until it has committed all of the topic. Raises: TimeoutError, RuntimeError."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    child = _start(program, environment, log)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await _watch(child, admin, group, topic, total)
    finally:
        await admin.close()
        _stop(child)


def _start(program: str, environment: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", f"benchmarks.programs.{program}"]
    with log.open("ab") as output:
        return subprocess.Popen(command, env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT)


async def _watch(
    child: "subprocess.Popen[bytes]", admin: AIOKafkaAdminClient, group: str, topic: str, total: int
) -> Round:
    first: tuple[int, float, float] | None = None
    while True:
        if child.poll() is not None:
            raise RuntimeError(f"{group}: the program ended with code {child.returncode}")
        done = await _committed(admin, group, topic)
        now, cpu = time.monotonic(), _cpu_seconds(child.pid)
        if first is None and done:
            first = done, now, cpu
        if first and done >= total:
            return Round(done - first[0], now - first[1], cpu - first[2])
        await asyncio.sleep(POLL_SECONDS)


async def _committed(admin: AIOKafkaAdminClient, group: str, topic: str) -> int:
    try:
        found = await admin.list_consumer_group_offsets(group)
    except GroupCoordinatorNotAvailableError:  # the cluster's first group: its topic is being made
        return 0
    return sum(max(0, position.offset) for source, position in found.items() if source.topic == topic)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def _stop(child: "subprocess.Popen[bytes]") -> None:
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
