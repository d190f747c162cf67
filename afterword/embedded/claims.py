"""Locks on files, directories and ports, which end with the process that holds them."""

import fcntl
import json
import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from afterword.embedded.errors import DirectoryInUse
from afterword.streams.private import cache_directory, private_directory, write_private

POLL_SECONDS = 0.05
DYING_SECONDS = 10.0
"""Time for the children of a killed stack to end."""
HOST = "127.0.0.1"
LOWEST, HIGHEST = 20_000, 32_000
"""Below the range for outgoing connections of Linux (from 32768) and macOS (from 49152). Otherwise a client that
reconnects to a stopped server may be given that server's own port."""

_claimed: set[int] = set()


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock of `path`; wait until it is free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class DirectoryLock:
    """Lock that admits one running stack to a directory.

    Its servers inherit `fd`: the directory stays locked until the last of them has ended, even if their parent was
    killed.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fd = -1

    def acquire(self) -> None:
        """Take the lock.

        Raises: DirectoryInUse, at once if the owner runs, otherwise if its children do not end in time.
        """
        private_directory(self.directory)
        fd = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._lock(fd)
        except DirectoryInUse:
            os.close(fd)
            raise
        os.truncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        self.fd = fd

    def release(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _lock(self, fd: int) -> None:
        deadline = time.monotonic() + DYING_SECONDS
        while not _try_lock(fd):
            owner = os.pread(fd, 32, 0).decode()
            if _alive(owner) or time.monotonic() > deadline:
                raise DirectoryInUse(directory=self.directory, pid=owner or "unknown")
            time.sleep(POLL_SECONDS)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:  # it runs, as another user
        return True
    return True


def remembered_ports(file: Path, count: int) -> list[int]:
    """Return the ports of the last start, kept as JSON in `file`; new ones if one of them is taken."""
    if file.exists():
        ports = [int(port) for port in json.loads(file.read_text())]
        if len(ports) == count and all(is_free(port) and _claim(port) for port in ports):
            return ports
    ports = free_ports(count)
    write_private(file, json.dumps(ports).encode())
    return ports


def free_ports(count: int) -> list[int]:
    """Claim free ports until this process ends.

    No other caller gets them, even before a server listens (a JVM takes seconds) and while it is down.
    """
    candidates = random.SystemRandom().sample(range(LOWEST, HIGHEST), HIGHEST - LOWEST)
    free = (port for port in candidates if port not in _claimed and is_free(port) and _claim(port))
    return [next(free) for _ in range(count)]


def free_port(preferred: int) -> int:
    """Claim the preferred port until this process ends, or another one if it is taken; 0 prefers none."""
    if preferred and is_free(preferred) and _claim(preferred):
        return preferred
    return free_ports(1)[0]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # as servers do: connections in TIME_WAIT do not hold a port
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _claim(port: int) -> bool:
    """Claim the port; False if another process of this user has. The kernel ends a claim with its process."""
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):  # depends on the system
        return False
    _claimed.add(port)
    return True


@cache
def _claims() -> int:
    """File whose byte n is locked by the owner of port n. Never closed: closing any descriptor drops all locks.

    It is in a directory of the user's own: in the common one for temporary files anybody could be there first.
    """
    path = cache_directory() / "ports"
    private_directory(path.parent)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
