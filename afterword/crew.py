"""The workers of one deployment as child processes, for a laptop and for tests."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from afterword.embedded import Process

ROLES = ("segmenter", "summarizer", "archiver")
LOOK_SECONDS = 0.5
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A worker that ran this long is started again at once."""
STOP_SECONDS = 40.0

Ended = Callable[[str, int, Path], None]
"""Told the role, the exit code and the log of a worker that ended by itself."""


def start_worker(
    role: str, directory: Path, environment: Mapping[str, str] | None = None, *, name: str | None = None
) -> Process:
    """`afterword worker ROLE` as a child; it logs to `directory`/logs, and does not outlive us."""
    command = [sys.executable, "-m", "afterword", "worker", role]
    return Process(name or role, command, directory / "logs" / f"{name or role}.log", environment=environment)


class Crew:
    """One worker of each role, started again when it ends by itself: what a cluster's supervisor does."""

    def __init__(self, directory: Path, environment: Mapping[str, str], ended: Ended) -> None:
        self._directory = directory
        self._environment = environment
        self._ended = ended
        self._workers: dict[str, Process] = {}

    async def run(self) -> None:
        """Until it is cancelled; then every worker has drained and ended."""
        try:
            async with asyncio.TaskGroup() as keepers:
                for role in ROLES:
                    keepers.create_task(self._keep(role))
        finally:
            await asyncio.shield(self._stop())

    async def _keep(self, role: str) -> None:
        wait, loop = FIRST_WAIT_SECONDS, asyncio.get_running_loop()
        while True:
            began = loop.time()
            worker = self._workers[role] = start_worker(role, self._directory, self._environment)
            while worker.running:  # noqa: ASYNC110 – a process has no event to wait for
                await asyncio.sleep(LOOK_SECONDS)
            self._ended(role, worker.returncode or 0, worker.log)
            worker.kill()  # reaps it
            wait = FIRST_WAIT_SECONDS if loop.time() - began > STEADY_SECONDS else min(2 * wait, LONGEST_WAIT_SECONDS)
            await asyncio.sleep(wait)

    async def _stop(self) -> None:
        await asyncio.gather(*[asyncio.to_thread(worker.stop, STOP_SECONDS) for worker in self._workers.values()])
