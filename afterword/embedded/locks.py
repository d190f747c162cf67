"""Advisory locks on files. The kernel drops them with their last holder, so none is ever stale."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from afterword.embedded.errors import DirectoryInUse

POLL_SECONDS = 0.05
DYING_SECONDS = 10.0
"""How long the children of a stack that was killed may take to follow it."""


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Waits until nobody else is inside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class DirectoryLock:
    """One live stack in a directory.

    Its servers inherit `fd`: the directory counts as in use until the last of them is gone, even if whoever started
    them was killed.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fd = -1

    def acquire(self) -> None:
        """Raises: DirectoryInUse, at once when the owner lives, otherwise when its children do not follow it."""
        self.directory.mkdir(parents=True, exist_ok=True)
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
    except PermissionError:  # somebody else's, but there
        return True
    return True
