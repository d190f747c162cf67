"""`afterword dev` and `afterword demo`: servers that are killed, and signals."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from afterword.embedded import Process
from tests.e2e.test_how_to import development, shell
from tests.waiting import until

pytestmark = pytest.mark.nightly

PATIENCE_SECONDS = 60


def servers(data: Path) -> dict[str, int]:
    """Return the servers' processes, found by the data directory in their command lines."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode().split("\0")
        except OSError:  # the process has ended since
            continue
        if f"{data}/kafka/server.properties" in command:
            found["kafka"] = int(path.parent.name)
    return found


async def test_killed_server_is_reported_and_restarted(tmp_path: Path) -> None:
    data = tmp_path / ".afterword"
    async with development(tmp_path) as process:
        killed = servers(data)
        assert len(killed) == 1
        await shell(tmp_path, f"kill -9 {' '.join(map(str, killed.values()))}")
        lines = [f"{name} exited with code -9; see {data}" for name in killed]
        await until(lambda: all(line in process.log.read_text() for line in lines))
        await until(lambda: len(servers(data)) == 1)
        assert not set(servers(data).values()) & set(killed.values())
        await shell(tmp_path, "until afterword smoke; do sleep 1; done")


def worker_of(dev: int) -> int:
    children = Path(f"/proc/{dev}/task/{dev}/children").read_text().split()
    [worker] = [pid for pid in children if b"worker\0all" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return int(worker)


async def test_workers_that_were_killed_are_started_again(tmp_path: Path) -> None:
    async with development(tmp_path) as process:
        os.kill(worker_of(process.pid), signal.SIGKILL)
        await until(lambda: "all exited with code -9; see" in process.log.read_text())
        await shell(tmp_path, "until afterword smoke; do sleep 1; done")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_demo_ended_by_a_signal_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """SIGHUP: its terminal was closed."""
    command = [sys.executable, "-m", "afterword", "demo"]
    (tmp_path / "tmp").mkdir()
    process = Process("demo", command, tmp_path / "demo.log", environment={"TMPDIR": str(tmp_path / "tmp")})
    try:
        await until(lambda: "starting the workers" in process.log.read_text())
        assert list((tmp_path / "tmp").glob("afterword-demo-*"))
        os.kill(process.pid, number)
        assert await asyncio.to_thread(process.wait, PATIENCE_SECONDS) == 0
    finally:
        process.kill()
    assert not list((tmp_path / "tmp").glob("afterword-demo-*"))
    assert not servers(tmp_path / "tmp")


async def test_dev_creates_topics_of_its_sources_and_reads_them(tmp_path: Path) -> None:
    fields = ("id", "conversation_id", "user_id", "role", "content")
    mapping = "\n".join(f'{name} = "value.{name}"' for name in fields)
    (tmp_path / "afterword.toml").write_text(f'[[sources]]\ntopics = ["our.chat"]\n[sources.map]\n{mapping}\n')
    async with development(tmp_path) as process:
        await shell(tmp_path, "until afterword check | grep 'OK *sources *our.chat'; do sleep 1; done")
        log = tmp_path / ".afterword" / "logs" / "ingest.log"
        await until(lambda: log.exists() and "health_server_started" in log.read_text())
        assert "ingest exited" not in process.log.read_text()
