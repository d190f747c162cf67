"""The processes of `afterword dev`, and the screen that it shares with the demo."""

import asyncio
import errno
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from afterword.embedded import DiskFull, EmbeddedStack, Process
from afterword.local.demo import Story, temporary_directory
from afterword.local.dev import keep
from afterword.streams.errors import AfterwordError
from afterword.terminal import Screen


def test_output_without_a_terminal_is_plain_and_without_counters(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen() as screen:
        screen.doing("starting")
        screen.doing("3 of 9", live=True)
        screen.doing("")
        screen.line("[bold]as it is[/bold]", "bold")
        screen.row("user", "a text of many words " * 20)
    assert capsys.readouterr().out.splitlines() == [
        "… starting",
        "[bold]as it is[/bold]",
        "  user        " + ("a text of many words " * 20).rstrip(),
    ]


async def test_process_that_ends_is_reported_and_restarted(tmp_path: Path) -> None:
    told: list[str] = []
    both = asyncio.Event()
    full = iter([OSError(errno.ENOSPC, "No space left on device")])

    def start() -> Process:
        if (error := next(full, None)) is not None:
            raise error
        return Process("broker", ["/bin/sh", "-c", "exit 3"], tmp_path / "kafka.log")

    def ended(name: str, what: str) -> None:
        told.append(f"{name} {what}")
        if len(told) == 2:
            both.set()

    keeper = asyncio.create_task(keep("broker", start, ended))
    async with asyncio.timeout(120):
        await both.wait()
    keeper.cancel()
    assert told == [
        "broker cannot be started: [Errno 28] No space left on device",
        f"broker exited with code 3; see {tmp_path}/kafka.log",
    ]


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=4096))


async def test_start_on_a_full_disk_is_refused(tmp_path: Path, full_disk: None) -> None:
    directory = tmp_path / ".afterword"
    with pytest.raises(DiskFull, match=f"the disk of {directory} is full"):
        await EmbeddedStack(directory).start()
    assert list(directory.iterdir()) == []
    assert directory.stat().st_mode & 0o777 == 0o700


async def test_server_ended_by_full_disk_names_its_path(tmp_path: Path, full_disk: None) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    log = tmp_path / "logs" / "mongo.log"
    log.parent.mkdir()

    def start() -> Process:
        return Process("mongo", ["/bin/sh", "-c", "exit 1"], log)

    keeper = asyncio.create_task(keep("mongo", start, lambda _, what: told.put_nowait(what)))
    async with asyncio.timeout(120):
        assert await told.get() == f"exited with code 1; the disk of {tmp_path} is full"
    keeper.cancel()


def test_closed_terminal_does_not_end_a_nohup_start() -> None:
    code = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from afterword.commands.processes import end_as_by_ctrl_c; end_as_by_ctrl_c()\n"
        "signal.raise_signal(signal.SIGHUP)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class LogsAreIn(AfterwordError):
    """the logs are in {logs}"""


def a_story() -> Story:
    return Story(Screen(), keep_serving=False)


def test_demo_leaves_files_only_after_a_failure(tmp_path: Path) -> None:
    with temporary_directory(a_story()) as directory:
        (directory / "logs").mkdir()
    assert not directory.exists()
    story = a_story()
    with temporary_directory(story, tmp_path) as directory:
        story.failed("segmenter", f"exited with code 1; see {directory}/logs/segmenter.log")
    assert directory.exists()


def test_logs_named_by_a_demos_error_exist_afterwards(tmp_path: Path) -> None:
    with pytest.raises(LogsAreIn), temporary_directory(a_story(), tmp_path) as directory:
        raise LogsAreIn(logs=directory / "logs")
    assert directory.exists()
