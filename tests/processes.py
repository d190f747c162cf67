"""Looks at other processes, and waits for conditions."""

import subprocess
import time
from collections.abc import Callable

SECONDS = 120.0


def alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    return state(pid) not in ("", "Z")


def state(pid: int) -> str:
    """Return the first letter of the state in ps, such as T for suspended; empty if there is no such process."""
    done = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip()[:1]


def until(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Wait for the condition; fail the test if it is not met in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
