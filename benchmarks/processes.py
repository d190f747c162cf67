"""Resources of a process according to /proc, and workers of ours as their users start them."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from afterword.dev import start_worker
from afterword.embedded import Process
from afterword.embedded.claims import HOST, free_ports

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
LOOK_SECONDS = 0.01
READY_SECONDS = 300.0
STOP_SECONDS = 60.0


def cpu_seconds_of(stat: str) -> float:
    """User and system time of all threads, from the text of /proc/PID/stat."""
    fields = stat.rpartition(")")[2].split()  # the name before may have spaces and brackets
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def status_bytes(status: str, name: str) -> int:
    """One of the sizes in the text of /proc/PID/status, such as VmRSS or VmHWM (the most it ever was)."""
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(f"{name}:"))


def written_bytes_of(io: str) -> int:
    """Read bytes written from the text of /proc/PID/io."""
    return next(int(line.split()[1]) for line in io.splitlines() if line.startswith("write_bytes:"))


def family(pid: int) -> list[int]:
    """The process and all that it has started, directly or not."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # one may end meanwhile
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def proportional_bytes(pids: Iterable[int]) -> int:
    """Memory of these processes together: pages that several share are counted once (PSS)."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            total += status_bytes(Path(f"/proc/{pid}/smaps_rollup").read_text(), "Pss")
    return total


def cpu_seconds(pid: int) -> float:
    return cpu_seconds_of(Path(f"/proc/{pid}/stat").read_text())


@dataclass(frozen=True)
class Worker:
    """One that runs, and where its health is."""

    process: Process
    port: int

    @property
    def cpu_seconds(self) -> float:
        return cpu_seconds_of(self._proc("stat"))

    def memory_bytes(self, name: str = "VmRSS") -> int:
        return status_bytes(self._proc("status"), name)

    @property
    def written_bytes(self) -> int:
        """Bytes that it had the disk write; 0 on a file system in memory."""
        return written_bytes_of(self._proc("io"))

    async def until_ready(self) -> None:
        """Raises: TimeoutError, ProcessExited."""
        async with asyncio.timeout(READY_SECONDS), httpx.AsyncClient(trust_env=False) as client:
            while not await self._is_ready(client):
                self.process.check()
                await asyncio.sleep(LOOK_SECONDS)

    async def _is_ready(self, client: httpx.AsyncClient) -> bool:
        try:
            return (await client.get(f"http://{HOST}:{self.port}/readyz")).is_success
        except httpx.TransportError:
            return False

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self.process.pid}/{name}").read_text()


@asynccontextmanager
async def worker(role: str, directory: Path, environment: Mapping[str, str]) -> AsyncIterator[Worker]:
    """`afterword worker ROLE`, logging below `directory`; drained at the end.

    Raises: RuntimeError when it is not, unless it was killed before.
    """
    (port,) = free_ports(1)
    process = start_worker(role, directory, {**environment, "AFTERWORD_HEALTH__PORT": str(port)})
    try:
        yield Worker(process, port)
    finally:
        killed = process.returncode == -signal.SIGKILL
        code = await asyncio.to_thread(process.stop, STOP_SECONDS)
    if code and not killed:
        raise RuntimeError(f"{role} ended with {code}: {process.tail()}")
