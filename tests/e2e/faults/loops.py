"""Measures from another process how long a worker's event loop is blocked.

`/livez` is answered by the event loop alone: it is asked ten times a second, and an answer that comes late is a loop
that was blocked. Not counted is the time in which a busy machine had no processor for the worker: the kernel says how
long each thread ran and how long it waited for a processor (`/proc/PID/task/TID/schedstat`). Of a late answer the
worker is to blame for

- what is left without the waiting of all its threads, whatever it did in that time;
- what the event loop's own thread ran.

A worker that starts is measured from its first readiness on: before that nobody waits for it.

A thread of the measuring process that only sleeps notices when the whole machine stood still. Another one does a fixed
piece of work now and then, and so knows the speed of a processor, and the machine's pace: the share of a processor that
a process gets, times its speed. Longer times are measured with a clock that goes at that pace. The speed of the machine
for which the bounds were set is 1, and no machine counts as faster.
"""

import asyncio
import contextlib
import json
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

HOST = "127.0.0.1"
PAUSE_SECONDS = 0.1
BEAT_SECONDS = 0.02
ANSWER_SECONDS = 60.0
WORK_STEPS, WORK_SECONDS = 300_000, 0.01
"""The fixed piece of work, and the CPU time that it takes at a speed of 1."""
PACE_SECONDS = 0.25
TOLD_SECONDS = 0.1
"""Faster answers are not reported."""
REQUEST = b"GET %s HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n"
ROOT = Path(__file__).parents[3]


class Loops:
    """The longest time that the event loop of any worker was blocked, and the machine's pace."""

    def __init__(self) -> None:
        self.latest = 0.0
        """Seconds of the slowest answer, whatever the cause."""
        self._began = time.monotonic()
        self._pace = self._speed = 1.0
        self._lap: dict[str, float] = {}
        self._clock = (0.0, self._began)

    def clock(self) -> float:
        """Return seconds on a clock that runs at the machine's pace."""
        seconds, at = self._clock
        now = time.monotonic()
        self._clock = (seconds + self._pace * (now - at), now)
        return self._clock[0]

    @property
    def mean_pace(self) -> float:
        """Return the mean share of a processor that a process got."""
        return self.clock() / (time.monotonic() - self._began)

    def keep(self, pace: float, speed: float) -> None:
        self.clock()
        self._pace, self._speed = pace, speed

    def see(self, name: str, seconds: float, own: float) -> None:
        """Note a late answer. `own` is the part of `seconds` that the worker is to blame for."""
        self._lap[name] = max(self._lap.get(name, 0.0), own * self._speed)
        self.latest = max(self.latest, seconds)

    def lap(self) -> tuple[float, str]:
        """Return the longest block since the last call, and the worker."""
        lap, self._lap = self._lap, {}
        return max(((seconds, name) for name, seconds in lap.items()), default=(0.0, ""))


@contextlib.asynccontextmanager
async def probed(targets: Callable[[], dict[str, tuple[int, int]]], loops: Loops) -> AsyncIterator[None]:
    """Measure while the block runs. `targets` returns pid and port of each listening worker, by name."""
    command = (sys.executable, "-m", "tests.e2e.faults.loops")
    pipe = asyncio.subprocess.PIPE
    prober = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=ROOT, start_new_session=True)
    tasks = [asyncio.create_task(_tell(prober, targets)), asyncio.create_task(_listen(prober, loops))]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        prober.kill()
        await prober.communicate()  # `wait` would not return while unread lines are in the pipe


async def _tell(prober: asyncio.subprocess.Process, targets: Callable[[], dict[str, tuple[int, int]]]) -> None:
    assert prober.stdin is not None
    while True:
        prober.stdin.write(json.dumps(targets()).encode() + b"\n")
        await prober.stdin.drain()
        await asyncio.sleep(0.5)


async def _listen(prober: asyncio.subprocess.Process, loops: Loops) -> None:
    assert prober.stdout is not None
    while line := await prober.stdout.readline():
        said = json.loads(line)
        if "pace" in said:
            loops.keep(**said)
        else:
            loops.see(**said)


# -- in the measuring process


class Times(NamedTuple):
    """Seconds that a thread ran, and waited for a processor."""

    ran: float = 0.0
    waited: float = 0.0

    def minus(self, other: "Times") -> "Times":
        return Times(self.ran - other.ran, self.waited - other.waited)


def main() -> None:
    """Read targets from standard input, and write late answers and the pace to standard output, to its end."""
    beats = Beats()
    threading.Thread(target=keep_pace, daemon=True).start()
    threading.Thread(target=beats.run, daemon=True).start()
    targets: dict[str, tuple[int, int]] = {}
    probing: set[str] = set()
    for line in sys.stdin:
        targets.clear()
        targets.update({name: (pid, port) for name, (pid, port) in json.loads(line).items()})
        for name in targets.keys() - probing:
            probing.add(name)
            threading.Thread(target=probe, args=(name, targets, beats), daemon=True).start()


def probe(name: str, targets: dict[str, tuple[int, int]], beats: "Beats") -> None:
    ready = 0
    while True:
        time.sleep(PAUSE_SECONDS)
        target = targets.get(name)
        if target is None:
            continue
        pid, port = target
        if pid != ready:
            ready = pid if answers(port, b"/readyz", b"HTTP/1.1 200") else 0
            continue
        before, began = threads(pid), time.monotonic()
        if not answers(port, b"/livez"):
            continue
        seconds = time.monotonic() - began
        if seconds >= TOLD_SECONDS:
            late = beats.latest_since(began)
            tell(name=name, seconds=seconds, own=blame(seconds - late, pid, before, threads(pid)))


def blame(seconds: float, pid: int, before: dict[str, Times], after: dict[str, Times]) -> float:
    """Return the part of `seconds` that the process is to blame for, as explained above."""
    spent = {thread: times.minus(before.get(thread, Times())) for thread, times in after.items()}
    waited = sum(times.waited for times in spent.values())
    return max(seconds - waited, min(seconds, spent.get(str(pid), Times()).ran), 0.0)


def tell(**said: object) -> None:
    print(json.dumps(said), flush=True)  # noqa: T201 – to its parent


def answers(port: int, path: bytes, beginning: bytes = b"HTTP") -> bool:
    """Return whether an answer with this beginning came; False if the worker is gone."""
    try:
        with socket.create_connection((HOST, port), ANSWER_SECONDS) as connection:
            connection.sendall(REQUEST % path)
            return connection.recv(64).startswith(beginning)
    except TimeoutError:
        return True
    except OSError:
        return False


def threads(pid: int) -> dict[str, Times]:
    """Return the times of each thread, or nothing if the kernel does not provide them."""
    found = {}
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread may have ended
                ran, waited, _ = (thread / "schedstat").read_text().split()
                found[thread.name] = Times(int(ran) / 1e9, int(waited) / 1e9)
    return found


def keep_pace() -> None:
    """Do the fixed piece of work again and again, and report pace and speed."""
    while True:
        began, worked = time.monotonic(), time.thread_time()
        sum(n * n for n in range(WORK_STEPS))
        ran, seconds = time.thread_time() - worked, time.monotonic() - began
        tell(pace=min(1.0, WORK_SECONDS / seconds), speed=min(1.0, WORK_SECONDS / ran))
        time.sleep(PACE_SECONDS)


class Beats:
    """Measures how late a sleeping thread wakes up."""

    def __init__(self) -> None:
        self._late: deque[tuple[float, float]] = deque(maxlen=int(2 * ANSWER_SECONDS / BEAT_SECONDS))

    def run(self) -> None:
        while True:
            due = time.monotonic() + BEAT_SECONDS
            time.sleep(BEAT_SECONDS)
            woke = time.monotonic()
            self._late.append((woke, woke - due))

    def latest_since(self, began: float) -> float:
        return max((late for woke, late in list(self._late) if woke >= began), default=0.0)


if __name__ == "__main__":
    main()
