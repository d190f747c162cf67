"""`afterword dev` and `afterword demo`: servers that are killed, and signals."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from afterword.embedded import Process
from afterword.local.dev import start_worker
from afterword.streams.roles import ALL, ALWAYS_RUN
from afterword.streams.settings import Settings
from tests.e2e.deployment import deployed, environment_of
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


SECONDS = 60.0


@pytest.mark.parametrize("role", [*ALWAYS_RUN, ALL])
async def test_worker_without_its_topics_ends_with_one_line(
    role: str, make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = make_settings()
    worker = start_worker(role, tmp_path, environment_of(settings))
    try:
        assert await asyncio.to_thread(worker.wait, SECONDS) == 2
    finally:
        worker.kill()
    topic = settings.kafka.episodes_topic if role == "summarizer" else settings.kafka.messages_topic
    last = f"afterword: topic {topic} does not exist; create it with: afterword topics create"
    assert [line for line in worker.tail().splitlines() if not line.startswith("{")] == [last]


async def test_server_that_cannot_start_ends_its_workers(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with deployed(make_settings(serve={"port": port}), tmp_path) as deployment:
            deployment.start(ALL)
            worker = deployment.workers[ALL]
            assert await asyncio.to_thread(worker.wait, SECONDS) == 1
            log = deployment.logs(ALL)
    assert log.count("app_stopped") == 0
    assert f"afterword: the worker cannot continue: 127.0.0.1:{port}: Address already in use; choose another" in log
