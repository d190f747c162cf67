"""Locks on files, directories and ports. A lock ends with the process that holds it."""

import fcntl
import json
import os
import random
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from afterword.streams.errors import AfterwordError
from afterword.streams.private import cache_directory, private_directory, write_private

POLL_SECONDS = 0.05
DYING_SECONDS = 10.0
"""How long the children of a killed stack may take to exit."""
HOST = "127.0.0.1"
LOWEST, HIGHEST = 20_000, 32_000
"""Ports are chosen below the range that Linux (from 32768) and macOS (from 49152) use for outgoing connections.
Otherwise a client that reconnects to a stopped server could be given that server's port."""

_claimed: set[int] = set()


class DirectoryInUse(AfterwordError):
    """{directory} is in use by a running stack (process {pid}); stop it, or choose another --data-dir"""


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock of `path`, waiting until it is free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def locked_directory(directory: Path) -> Iterator[int]:
    """Allow only one running stack in a directory. Yields a descriptor, which the stack's servers inherit.

    The directory stays locked until the last of them has exited, even if their parent was killed.

    Raises: DirectoryInUse, at once if the owner is running, or after a while if only its children are.
    """
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + DYING_SECONDS
    try:
        while not _take(lock):
            owner = os.pread(lock, 32, 0).decode()
            if _alive(owner) or time.monotonic() > deadline:
                raise DirectoryInUse(directory=directory, pid=owner or "unknown")
            time.sleep(POLL_SECONDS)
        os.truncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield lock
    finally:
        os.close(lock)


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:  # it is running as another user
        return True
    return True


def remembered_ports(file: Path, count: int, preferred: Sequence[int] = ()) -> list[int]:
    """Return the ports of the last start, which `file` stores as JSON, or on the first start the preferred ones.

    If any of them is taken, all ports are new. Port 0 means no preference.
    """
    ports = [int(port) for port in json.loads(file.read_text())] if file.exists() else list(preferred)
    if len(ports) != count or not all(port and is_free(port) and _claim(port) for port in ports):
        ports = free_ports(count)
    write_private(file, json.dumps(ports).encode())
    return ports


def free_ports(count: int) -> list[int]:
    """Claim free ports until this process ends.

    Other callers are not given these ports, even before a server listens (a JVM takes seconds) or while it is down.
    """
    candidates = random.SystemRandom().sample(range(LOWEST, HIGHEST), HIGHEST - LOWEST)
    free = (port for port in candidates if port not in _claimed and is_free(port) and _claim(port))
    return [next(free) for _ in range(count)]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # as servers do, so that connections in TIME_WAIT do not block the port
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _claim(port: int) -> bool:
    """Claim the port; False if another process of this user holds it. The kernel releases a claim with its process."""
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):  # the system decides which error is raised
        return False
    _claimed.add(port)
    return True


@cache
def _claims() -> int:
    """Open the file whose byte n is locked by the owner of port n.

    It is never closed, because closing any descriptor drops all locks. The file is in the user's own directory, because
    in the shared directory for temporary files anyone could create it first.
    """
    path = cache_directory() / "ports"
    private_directory(path.parent)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
