"""A directory has one stack at a time; a server keeps its port unless another process has taken it."""

import json
import os
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, run

import pytest

from afterword.embedded.claims import (
    HIGHEST,
    HOST,
    LOWEST,
    DirectoryInUse,
    free_ports,
    is_free,
    locked_directory,
    remembered_ports,
)
from afterword.embedded.java import JarCache
from afterword.embedded.stack import Broker
from tests.processes import alive

LOWEST_EPHEMERAL = 32_768


def test_next_start_finds_the_same_ports(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "ports.json"
    assert remembered_ports(file, 3) == remembered_ports(file, 3)


def test_port_taken_meanwhile_is_replaced(tmp_path: Path) -> None:
    before = remembered_ports(tmp_path / "ports.json", 2)
    with socket.create_server((HOST, before[0])):
        after = remembered_ports(tmp_path / "ports.json", 2)
    assert before[0] not in after
    assert remembered_ports(tmp_path / "ports.json", 2) == after


FULL_DISK = """
import resource, sys
from pathlib import Path
from afterword.embedded.java import JarCache
from afterword.embedded.stack import Broker
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
Broker(JarCache(Path(sys.argv[1])), Path(sys.argv[1]))
"""


def test_start_ended_by_full_disk_does_not_break_the_next(tmp_path: Path) -> None:
    """A file has at most 5 bytes, and the ports need more."""
    failed = run([sys.executable, "-c", FULL_DISK, str(tmp_path), "5"], capture_output=True, text=True, check=False)
    assert "OSError" in failed.stderr
    assert Broker(JarCache(tmp_path), tmp_path).ports == Broker(JarCache(tmp_path), tmp_path).ports


def test_ports_differ_and_avoid_the_ephemeral_range() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert max(ports) < LOWEST_EPHEMERAL


def test_port_is_reusable_while_old_connections_linger() -> None:
    server = socket.create_server((HOST, 0))
    port = server.getsockname()[1]
    client = socket.create_connection((HOST, port))
    accepted, _ = server.accept()
    assert not is_free(port)
    accepted.close()  # the server's side closes first, and keeps the connection in TIME_WAIT
    client.close()
    server.close()
    assert is_free(port)


CLAIM = """
import sys
from afterword.embedded import claims
claims.LOWEST, claims.HIGHEST = map(int, sys.argv[1:3])
print(claims.free_ports(int(sys.argv[3])), flush=True)
sys.stdin.read()
"""


def test_two_processes_never_get_the_same_port() -> None:
    """A JVM takes seconds to bind its port: two stacks that started at the same moment could have chosen one port."""
    command = [sys.executable, "-c", CLAIM, str(HIGHEST - 200), str(HIGHEST), "60"]
    with ExitStack() as stack:
        processes = [stack.enter_context(Popen(command, stdin=PIPE, stdout=PIPE, text=True)) for _ in range(2)]
        given = [port for process in processes if process.stdout for port in json.loads(process.stdout.readline())]
    assert len(set(given)) == 120


def test_port_of_a_stopped_server_is_given_to_nobody(tmp_path: Path) -> None:
    port = remembered_ports(tmp_path / "ports.json", 1)[0]
    assert is_free(port)
    command = [sys.executable, "-c", CLAIM, str(port), str(port + 1), "1"]
    other = run(command, stdin=DEVNULL, capture_output=True, text=True, check=False)
    assert "StopIteration" in other.stderr


def test_preferred_port_is_taken_unless_in_use(tmp_path: Path) -> None:
    [port] = free_ports(1)
    file = tmp_path / "port.json"
    with socket.create_server((HOST, port)):
        [other] = remembered_ports(file, 1, [port])
    assert other != port
    assert remembered_ports(file, 1, [port]) == [other]
    assert remembered_ports(tmp_path / "first.json", 1, [port]) == [port]
    [new] = remembered_ports(tmp_path / "any.json", 1, [0])
    assert new in range(LOWEST, HIGHEST)


def test_temporary_port_directory_is_private(tmp_path: Path) -> None:
    (tmp_path / f"afterword-ports-{os.getuid()}").mkdir()
    cache = tmp_path / "cache"
    claim = "from afterword.embedded.claims import free_ports; print(free_ports(1))"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "AFTERWORD_CACHE_DIR": str(cache)}
    run([sys.executable, "-c", claim], env=environment, check=True, stdout=DEVNULL)
    assert cache.stat().st_mode & 0o777 == 0o700


OWNER = """
import os, subprocess, sys
from pathlib import Path
from afterword.embedded.claims import locked_directory
with locked_directory(Path(sys.argv[1])) as lock:
    {then}
    os._exit(0)
"""
CHILD = """print(subprocess.Popen(["sleep", "0.5"], pass_fds=[lock], stdout=subprocess.DEVNULL).pid, flush=True)"""


def test_directory_has_one_owner_at_a_time(tmp_path: Path) -> None:
    with locked_directory(tmp_path), pytest.raises(DirectoryInUse, match=f"process {os.getpid()}"):
        locked_directory(tmp_path).__enter__()
    with locked_directory(tmp_path):
        pass


def test_dead_owner_holds_no_lock(tmp_path: Path) -> None:
    run([sys.executable, "-c", OWNER.format(then="pass"), str(tmp_path)], check=True)
    with locked_directory(tmp_path):
        pass


def test_children_of_a_dead_owner_are_awaited(tmp_path: Path) -> None:
    owner = [sys.executable, "-c", OWNER.format(then=CHILD), str(tmp_path)]
    done = run(owner, check=True, capture_output=True, text=True)
    with locked_directory(tmp_path):
        assert not alive(int(done.stdout))
