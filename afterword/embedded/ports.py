"""Ports of servers that come back on the same address."""

import fcntl
import json
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

HOST = "127.0.0.1"
LOWEST, HIGHEST = 20_000, 32_000
"""Below the range that Linux (32768 and up) and macOS (49152 and up) take for outgoing connections: otherwise a client
that calls a server which is down for a moment may be given that server's port."""

_claimed: set[int] = set()


def remembered_ports(file: Path, count: int) -> list[int]:
    """The ports of the last start, as JSON in `file`; chosen anew when one of them has been taken since."""
    if file.exists():
        ports = [int(port) for port in json.loads(file.read_text())]
        if len(ports) == count and all(is_free(port) and _claim(port) for port in ports):
            return ports
    ports = free_ports(count)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(ports))
    return ports


def free_ports(count: int) -> list[int]:
    """Each is ours until this process ends: nobody else who asks here is given it, also before a server listens on it
    (a JVM takes seconds) and while its server is down."""
    candidates = random.SystemRandom().sample(range(LOWEST, HIGHEST), HIGHEST - LOWEST)
    free = (port for port in candidates if port not in _claimed and is_free(port) and _claim(port))
    return [next(free) for _ in range(count)]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # as servers do: connections that linger in TIME_WAIT do not hold a port
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _claim(port: int) -> bool:
    """Whether no other process of this user has claimed it; the kernel ends a claim with its process."""
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):  # which of the two is up to the system
        return False
    _claimed.add(port)
    return True


@cache
def _claims() -> int:
    """A file of which byte n is locked by whoever has port n. Open to the end: a process that closes any descriptor of
    the file drops all its locks."""
    path = Path(tempfile.gettempdir()) / f"afterword-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
