"""Child processes end when they should, and the embedded broker is one of them."""

import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from afterword.embedded.java import Jar, JarCache
from afterword.embedded.process import Process, ProcessExited
from afterword.embedded.stack import Broker, new_id
from tests.processes import SECONDS, alive, state, until

Start = Callable[[str], Process]

WRITES = """
import time
while True:
    print(".")
    time.sleep(0.01)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Process] = []

    def shell(script: str) -> Process:
        process = Process("shell", ["/bin/sh", "-c", script], tmp_path / "log")
        started.append(process)
        return process

    yield shell
    for process in started:
        process.kill()


def test_stop_lets_a_process_end_in_order(start: Start) -> None:
    process = start("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    until(lambda: "up" in process.tail())
    assert process.stop() == 0
    assert process.tail() == "up\nbye\n"


def test_stop_kills_a_process_that_ignores_it(start: Start) -> None:
    process = start("trap '' TERM; echo up; while :; do sleep 0.05; done")
    until(lambda: "up" in process.tail())
    assert process.stop(timeout=0.2) == -signal.SIGKILL


def test_repeated_stop_and_kill_are_harmless(start: Start) -> None:
    process = start("exit 3")
    until(lambda: not process.running)
    process.tell(b"nobody reads this")
    assert process.stop() == 3
    process.kill()
    assert process.returncode == 3


def test_kill_takes_the_children_too(start: Start) -> None:
    process = start("sleep 60 & echo $!; wait")
    until(lambda: process.tail().strip().isdigit())
    child = int(process.tail())
    process.kill()
    until(lambda: not alive(child))


def test_suspended_process_resumes(start: Start) -> None:
    # Not a loop of the shell: stopped while its child has yet to exec, the shell waits in state D.
    process = start(f"exec {shlex.quote(sys.executable)} -uc {shlex.quote(WRITES)}")
    until(lambda: len(process.tail()) > 2)
    process.suspend()
    until(lambda: state(process.pid) == "T")
    process.resume()
    written = len(process.tail())
    until(lambda: len(process.tail()) > written)


def test_suspended_process_can_be_stopped(start: Start) -> None:
    process = start("trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done")
    until(lambda: "up" in process.tail())
    process.suspend()
    assert process.stop() == 0


def test_early_end_is_reported_with_the_last_log(start: Start) -> None:
    start("sleep 60").check()
    process = start("echo no such luck; exit 7")
    process.wait(SECONDS)
    with pytest.raises(ProcessExited, match=r"shell exited with 7.*(?s:.*)no such luck"):
        process.check()


@pytest.mark.parametrize("suspended", [False, True])
def test_no_process_outlives_a_killed_parent(tmp_path: Path, suspended: bool) -> None:
    script = f"""
from pathlib import Path
from afterword.embedded.process import Process
process = Process("sleep", ["sleep", "60"], Path({str(tmp_path)!r}, "log"))
{"process.suspend()" if suspended else ""}
print(process.pid, flush=True)
process.wait()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.kill()
    until(lambda: not alive(child))


def test_every_listener_is_local(tmp_path: Path) -> None:
    broker = Broker(JarCache(tmp_path, []), tmp_path)
    plain, controller = (f"127.0.0.1:{port}" for port in broker.ports)
    properties = broker.properties()
    assert properties["listeners"] == f"PLAINTEXT://{plain},CONTROLLER://{controller}"
    assert properties["advertised.listeners"] == f"PLAINTEXT://{plain}"
    assert properties["controller.quorum.voters"] == f"1@{controller}"


def test_cluster_id_never_begins_with_a_dash() -> None:
    """Every 64th used to, and the storage tool read it as an option."""
    assert not any(new_id().startswith("-") for _ in range(1_000))


def test_first_broker_records_its_classes_for_later_ones(tmp_path: Path) -> None:
    jars = JarCache(tmp_path, [Jar("org.example", "one", "1.0", 1, "", "kafka")])
    plain, recording = (Broker(jars, tmp_path, record=record) for record in (False, True))
    command = plain.start_command()
    [flag] = set(recording.start_command()) - set(command)
    recording.keep_recording()  # it was killed before it wrote anything
    assert plain.start_command() == command
    Path(flag.split("=")[1]).write_bytes(b"classes")
    recording.keep_recording()
    for broker in (plain, recording):
        [flag] = set(broker.start_command()) - set(command)
        assert Path(flag.split("=")[1]).read_bytes() == b"classes"
