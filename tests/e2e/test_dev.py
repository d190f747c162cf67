"""`afterword dev`, whose servers are killed."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from tests.e2e.test_tutorial import development, shell
from tests.processes import until

PATIENCE_SECONDS = 60


def servers(data: Path) -> dict[str, int]:
    """Processes by the name that their last lines have: those whose command line names the directory of their data."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode().split("\0")
        except OSError:  # it ends meanwhile
            continue
        if f"{data}/kafka/broker-1/server.properties" in command:
            found["kafka broker 1"] = int(path.parent.name)
        elif f"{data}/mongo/store.mv" in command:
            found["mongo"] = int(path.parent.name)
    return found


async def in_time(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, condition, PATIENCE_SECONDS)


async def test_a_server_that_was_killed_is_told_and_started_again(tmp_path: Path) -> None:
    data = tmp_path / ".afterword"
    async with development(tmp_path) as process:
        killed = servers(data)
        assert len(killed) == 2
        await shell(tmp_path, f"kill -9 {' '.join(map(str, killed.values()))}")
        lines = [f"{name} exited with code -9; see {data}" for name in killed]
        await in_time(lambda: all(line in process.log.read_text() for line in lines))
        await in_time(lambda: len(servers(data)) == 2)
        assert not set(servers(data).values()) & set(killed.values())
        await shell(tmp_path, "until afterword smoke; do sleep 1; done")
